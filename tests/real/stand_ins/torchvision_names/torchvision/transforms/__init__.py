"""TEST USE ONLY: see the package."""

# mypy: ignore-errors

from enum import Enum

from torchvision import absent


class InterpolationMode(Enum):
    """torchvision's names of ways to scale an image."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str) -> type:
    return absent(name)
