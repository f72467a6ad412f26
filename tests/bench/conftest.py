from collections.abc import Iterator

import pytest

from sweeper.bench.process import ClientProcess


@pytest.fixture(scope="module")
def client() -> Iterator[ClientProcess]:
    with ClientProcess.start() as started:
        yield started
