"""`python -m sweeper.report RUN [RUN ...]`: write the page of one study, or of several."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeper.errors import UserError
from sweeper.report import write_pages, write_report


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print its path.

    Returns:
        0; 2 after a mistake of the user's, which is printed in one line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.report",
        description="Write the report of a run, or of several side by side, as one HTML page.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a study")
    parser.add_argument(
        "--plotly",
        choices=("inline", "directory"),
        default="inline",
        help="put Plotly into the page (5 MB), or beside it as a file that pages share",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page; RUN/report.html, or comparison.html here for several runs",
    )
    parser.add_argument(
        "--images",
        choices=("png", "svg"),
        help="also write each figure as a file into images/ beside the page; needs kaleido",
    )
    options = parser.parse_args(argv)
    try:
        if options.output is None and len(options.runs) == 1:
            path = write_report(options.runs[0], plotly=options.plotly)
        else:
            output = options.output or Path("comparison.html")
            path = write_pages(options.runs, output, plotly=options.plotly)
        if options.images is not None:
            # Plotly takes half a second to import; a mistake above is told before.
            from sweeper.report.images import write_images

            write_images(options.runs, path.parent / "images", options.images)
    except UserError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
