import pytest

from sweeper.redaction import HIDDEN, is_secret_name, redact_mapping, redact_text


@pytest.mark.parametrize(
    "name",
    ["api-key", "admin-api-key", "HF_TOKEN", "OPENAI_API_KEY", "db-password", "CLIENT_SECRET"],
)
def test_secret_names_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "speculative-num-draft-tokens",
        "max-total-tokens",
        "tokenizer-path",
        "speculative-token-map",
        "tbo_token_distribution_threshold",
        "mem-fraction-static",
        "NCCL_ALGO",
        "keyboard",
    ],
)
def test_names_that_only_look_like_secrets_are_kept(name: str) -> None:
    assert not is_secret_name(name)


def test_values_of_secret_names_are_hidden() -> None:
    assert redact_mapping({"api-key": "abc", "port": 1}) == {"api-key": HIDDEN, "port": 1}


@pytest.mark.parametrize(
    "text",
    [
        "--api-key s3cret",
        "--admin-api-key=s3cret",
        "Authorization: Bearer s3cret",
        "http://user:s3cret@proxy:80",
        "token hf_s3cret",
    ],
)
def test_secrets_in_text_are_hidden(text: str) -> None:
    assert "s3cret" not in redact_text(text)
