"""TEST USE ONLY: the names of torchvision that SGLang's imports reach, and no images.

torchvision's own wheel loads only beside the very build of torch that it was made for, which
brings gigabytes of CUDA libraries. A text model calls none of it.
"""

__version__ = "0.0.0"


def absent(name: str) -> type:
    """Return a class that can be named and subclassed, but not made.

    Raises:
        AttributeError: The name is one of Python's own.
    """
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError(f"this torchvision is a stand-in without {name}")

    return type(name, (), {"__init__": refuse})
