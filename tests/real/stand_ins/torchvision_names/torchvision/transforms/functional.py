"""TEST USE ONLY: see the package."""

# mypy: ignore-errors

from torchvision import absent


def __getattr__(name: str) -> type:
    return absent(name)
