import pytest

from sweeper.redaction import (
    HIDDEN,
    is_secret_name,
    redact_mapping,
    redact_text,
    redact_value,
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
    lists = {"lora-paths": ("a", "https://me:s3cret@host/x"), "cuda-graph-bs": (1, 2)}
    hidden = ("a", "https://me:***@host/x")
    assert redact_mapping(lists) == {"lora-paths": hidden, "cuda-graph-bs": (1, 2)}


@pytest.mark.parametrize(
    "text",
    [
        "--api-key s3cret",
        "--admin-api-key=s3cret",
        "Authorization: Bearer s3cret",
        "http://user:s3cret@proxy:80",
        "token hf_s3cret",
        "server_args=ServerArgs(model_path='x', api_key='s3cret', host='::')",
        '{"api_key": "s3cret", "port": 1}',
        "['python', '--api-key', 's3cret']",
        "env HF_TOKEN=s3cret python",
    ],
)
def test_secrets_in_text_are_hidden(text: str) -> None:
    assert "s3cret" not in redact_text(text)
    assert redact_text(redact_text(text)) == redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: custom_mask_buf does not fit tree_mask_mode",
        "AttributeError: 'NoneType' object has no attribute 'hf_config'",
        "ImportError: cannot import name 'hf_hub_download' from huggingface_hub",
        "/mnt/disk_1/venv/bin/python",
        "/models/hf_llama3/draft",
        "/data/hf_models/v2/draft",
        "/home/me/hf_cache2",
        "task_12",
        "No module named 'hf_transfer'",
        "#new-token: 16, #token: 7352, eos_token: </s>, max_new_token=5",
        "api_key=None, admin_api_key=None, password: None",
    ],
)
def test_words_that_only_look_like_secrets_stay_in_a_text(text: str) -> None:
    assert redact_text(text) == text
    assert redact_words([text]) == [text]


def test_a_password_in_an_address_is_hidden_in_a_value() -> None:
    assert redact_mapping({"HTTPS_PROXY": "http://me:s3cret@proxy:80", "a": 1}) == {
        "HTTPS_PROXY": "http://me:***@proxy:80",
        "a": 1,
    }


def test_the_word_after_a_secret_flag_is_hidden() -> None:
    words = ["python", "--api-key", "s3cret", "--port", "1"]
    assert redact_words(words) == ["python", "--api-key", HIDDEN, "--port", "1"]


@pytest.mark.parametrize("text", ["a" * 10**6, "a=" * 10**5, "--a " * 10**5, "://a:" * 10**5])
def test_a_line_of_a_megabyte_is_walked_once(text: str) -> None:
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


@pytest.mark.parametrize(
    "value",
    [
        "authorization=Bearer s3cret",
        "Bearer s3cret",
        "--port 1 --api-key s3cret",
        "PORT=1,HF_TOKEN=s3cret",
        '{"api_key": "s3cret", "port": 1}',
        "https://me:s3cret@host/x",
        "hf_s3cret0s3cret0s3cret0",
    ],
)
def test_secrets_that_a_value_names_are_hidden_in_it(value: str) -> None:
    once = redact_value(value)
    assert "s3cret" not in once
    assert redact_value(once) == once
    assert redact_mapping({"x": value, "y": (value,)}) == {"x": once, "y": (once,)}


@pytest.mark.parametrize("value", ["hf_llama3", "sk_small", "allreduce:tree", "a=1, b: 2", "/a b"])
def test_values_that_only_look_like_secrets_tell_settings_apart(value: str) -> None:
    assert redact_value(value) == value


def test_the_word_after_a_secret_flag_is_hidden_in_a_list_too() -> None:
    assert redact_mapping({"args": ("--api-key", "s3cret", 1)}) == {
        "args": ("--api-key", HIDDEN, 1)
    }
