import pytest

from sweeper.redaction import (
    HIDDEN,
    is_secret_name,
    redact_mapping,
    redact_text,
    redact_words,
)


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


@pytest.mark.parametrize(
    "text",
    [
        "/mnt/disk_1/models/draft",
        "/data/hf_models/v2/draft",
        "/home/me/hf_cache2",
        "task_12",
        "No module named 'hf_transfer'",
    ],
)
def test_paths_and_words_that_only_look_like_tokens_are_kept(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("token", ["hf_" + "abCDefGHijKLmnOPqrSTuvWXyzabCDefGH", "ghp_0123abcd"])
@pytest.mark.parametrize("around", ["{}", "HF_TOKEN={}", "'{}'", "token {}, and"])
def test_tokens_are_hidden_wherever_they_stand(token: str, around: str) -> None:
    assert token not in redact_text(around.format(token))


def test_secrets_in_values_and_commands_are_hidden() -> None:
    assert "s3cret" not in str(redact_mapping({"HTTPS_PROXY": "http://me:s3cret@proxy:80"}))
    words = [
        "python",
        "-m",
        "server",
        "--api-key",
        "s3cret",
        "--admin-api-key=s3cret",
        "--port",
        "1",
    ]
    hidden = redact_words(words)
    assert "s3cret" not in str(hidden)
    assert [hidden[i] for i in (0, 1, 2, 3, 6, 7)] == [words[i] for i in (0, 1, 2, 3, 6, 7)]
    assert redact_words(hidden) == hidden
