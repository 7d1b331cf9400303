"""The operator's settings: defaults, flags, variables, and errors in one line."""

import pickle
import re
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from serving import settings
from serving.settings import Options
from tools import settings_docs

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
# For each setting: the text of a flag or variable, and its value, which is not the default.
OTHERS = {
    "model_id": ("org/model", "org/model"),
    "revision": ("v1", "v1"),
    "vae_id": ("org/vae", "org/vae"),
    "unet_id": ("org/unet", "org/unet"),
    "tiny_vae": ("org/tiny", "org/tiny"),
    "refiner_id": ("org/refiner", "org/refiner"),
    "scheduler": ("ddim", "ddim"),
    "lora_dir": ("loras", Path("loras")),
    "model_dir": ("models", Path("models")),
    "models": ("a.safetensors,owner/name", ("a.safetensors", "owner/name")),
    "model_memory": ("1000", 1000),
    "control_dir": ("controls", Path("controls")),
    "preprocessors": ("depth=a:b,pose=a:c", ("depth=a:b", "pose=a:c")),
    "embedding_dir": ("embeddings", Path("embeddings")),
    "wildcard_dir": (".", Path()),
    "prompt_chunks": ("3", 3),
    "step_cache": ("yes", True),
    "devices_per_picture": ("4", 4),
    "quantization": ("int8", "int8"),
    "sizes": ("64x32", ((64, 32),)),
    "images_per_request": ("2", 2),
    "steps": ("30", 30),
    "live": ("on", "on"),
    "cache_dir": ("cache", Path("cache")),
    "host": ("::1", "::1"),
    "port": ("8000", 8000),
    "allowed_hosts": ("draw.example.org, *.example.com", ("draw.example.org", "*.example.com")),
    "cors_origins": (
        "https://a.example, https://*.b.example",
        ("https://a.example", "https://*.b.example"),
    ),
    "root_path": ("/draw", "/draw"),
    "trusted_proxies": ("2", 2),
    "api_keys_file": ("keys", Path("keys")),
    "page_users_file": ("users", Path("users")),
    "page_passphrase": ("a passphrase", SecretStr("a passphrase")),
    "page_api": ("off", "off"),
    "a1111_api": ("off", "off"),
    "stop_within": ("0", 0),
    "log_format": ("json", "json"),
    "log_prompts": ("yes", True),
    "max_waiting": ("10000", 10_000),
    "max_wait": ("1", 1),
    "max_run": ("86400", 86_400),
    "grace": ("0", 0),
    "keep_results": ("0", 0),
    "keep_seconds": ("1", 1),
    "keep_files": ("60", 60),
    "rate_per_address": ("6", 6),
    "rate_per_session": ("7", 7),
    "backend_urls": ("http://a:7860,http://[::1]:80", ("http://a:7860", "http://[::1]:80")),
    "backend_key_file": ("key", Path("key")),
    "blocked_words": ("words", Path("words")),
    "safety_checker": ("no", False),
    "screen": ("my.screens:look", "my.screens:look"),
    "reveal": ("no", False),
}


def test_defaults():
    assert settings.read([], {}) == Options(
        model_id=None,
        revision=None,
        host="127.0.0.1",
        port=7860,
        sizes=(),
        images_per_request=4,
        steps=None,
        max_waiting=32,
        max_wait=600,
        max_run=300,
        grace=30,
        keep_results=32,
        keep_seconds=600,
        keep_files=3600,
        stop_within=60,
        rate_per_address=0,
        rate_per_session=0,
        trusted_proxies=0,
        api_keys_file=None,
        page_users_file=None,
        page_passphrase=None,
        blocked_words=None,
        cors_origins=(),
        allowed_hosts=(),
        page_api="keys",
        a1111_api="keys",
        log_format="text",
        log_prompts=False,
        backend_urls=(),
        backend_key_file=None,
        scheduler=None,
        vae_id=None,
        tiny_vae=None,
        lora_dir=None,
        embedding_dir=None,
        safety_checker=True,
        screen=None,
        reveal=True,
        cache_dir=None,
        space_id=None,
        space_host="",
    )


def test_the_tests_have_another_value_of_every_setting():
    assert [setting.name for setting in settings.described()] == list(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_flag_and_a_variable_have_the_name_of_the_setting(name: str):
    text, value = OTHERS[name]
    for arguments, variables in (
        ([f"--{name.replace('_', '-')}", text], {}),
        ([], {name.upper(): text}),
    ):
        chosen = settings.read(arguments, variables)
        assert getattr(chosen, name) == value
        assert chosen == settings.read([], {}).model_copy(update={name: value})


def test_flag_wins_over_variable_and_empty_variable_counts_as_unset():
    variables = {"PORT": "8000", "STEPS": "10", "HOST": "", "CACHE_DIR": "cache"}
    chosen = settings.read(["--steps", "30"], variables)
    assert (chosen.port, chosen.steps, chosen.host) == (8000, 30, "127.0.0.1")
    assert chosen.cache_dir == Path("cache")
    assert not settings.read([], {"SAFETY_CHECKER": "no"}).safety_checker
    assert settings.read(["--safety-checker", "yes"], {"SAFETY_CHECKER": "no"}).safety_checker
    assert settings.read(["--steps", "30"], {"STEPS": "a variable that is not used"}).steps == 30


def test_only_the_environment_that_is_given_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PORT", "8000")
    assert settings.read([], {}).port == Options().port == 7860
    assert settings.read([], {"port": "8000", "UNKNOWN": "1"}).port == 7860


def test_short_names():
    short = ["--model", "a", "--images=2"]
    assert settings.read(short, {}) == settings.read(
        ["--model-id", "a", "--images-per-request", "2"], {}
    )
    assert settings.read([], {"MODEL": "a", "IMAGES": "2"}) == settings.read([], {})


def test_sizes_are_width_and_height_each_once():
    chosen = settings.read(["--sizes", "1024x1024, 1152x896,1024x1024"], {})
    assert chosen.sizes == ((1024, 1024), (1152, 896))


def test_on_a_space_the_page_is_open_to_all():
    assert settings.read([], {"SPACE_ID": "org/name"}).host == "0.0.0.0"
    assert settings.read([], {"SPACE_ID": "org/name", "HOST": "::1"}).host == "::1"
    on_space = settings.read([], {"SPACE_ID": "org/name", "SPACE_HOST": "org-name.hf.space"})
    assert on_space.on_space
    assert on_space.space_host == "org-name.hf.space"
    assert on_space.trusted_proxies == 1
    assert not settings.read([], {}).on_space


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (
            ["--port", "0"],
            {},
            "--port: '0' is not possible; expected a whole number from 1 to 65535",
        ),
        (
            [],
            {"PORT": "http"},
            "PORT: 'http' is not possible; expected a whole number from 1 to 65535",
        ),
        ([], {"STEPS": "51"}, "STEPS: '51' is not possible; expected a whole number from 1 to 50"),
        (["--images", "4.5"], {}, "--images-per-request: '4.5'"),
        (["--images-per-request", "4_0"], {}, "--images-per-request: '4_0'"),
        (["--sizes", "1024"], {}, "--sizes: '1024' is not possible; expected sizes such as 1024x"),
        (["--sizes", "64x64,7x64"], {}, "--sizes: '7x64' is not possible"),
        ([], {"SIZES": "64x64,-8x64"}, "SIZES: '-8x64' is not possible"),
        (["--max-waiting", "9" * 5000], {}, "--max-waiting"),
        (
            ["--cors-origins", "example.org"],
            {},
            "'example.org' is not possible; expected an origin",
        ),
        (
            ["--allowed-hosts", "a:80"],
            {},
            "--allowed-hosts: 'a:80' is not possible; expected a name",
        ),
        (["--cors-origins", "https://*"], {}, "'https://*' is not possible"),
        ([], {"BACKEND_URLS": "http://a/b"}, "BACKEND_URLS: 'http://a/b' is not possible"),
        ([], {"BACKEND_URLS": "http://*.a.example"}, "BACKEND_URLS: 'http://*.a.example' is not"),
        ([], {"LOG_FORMAT": "xml"}, "LOG_FORMAT: 'xml' is not possible; expected text or json"),
        (["--log-prompts", "perhaps"], {}, "expected yes or no"),
        (
            [],
            {"SAFETY_CHECKER": "off"},
            "SAFETY_CHECKER: 'off' is not possible; expected yes or no",
        ),
        (
            [],
            {"SCREEN": "my.screen"},
            "SCREEN: 'my.screen' is not possible; expected package.module",
        ),
        (["--reveal", "no", "--screen", "a:b", "--backend-urls", "http://a"], {}, "--screen: "),
        (["--trusted-proxies", "-1"], {}, "--trusted-proxies"),
        (["--colour", "red"], {}, "unrecognized arguments: --colour"),
        (["--port"], {}, "--port: expected one argument"),
        (["--port", "1\n2"], {"STEPS": "x"}, "is not possible"),
    ],
)
def test_refused_in_one_line(
    arguments: list[str],
    variables: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as stop:
        settings.read(arguments, variables)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert error.startswith("app.py: ")
    assert error.count("\n") == 1


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        settings.read([], {"BACKEND_URLS": "http://name:secret@example.org"})
    error = capsys.readouterr().err
    assert "'http://...@example.org' is not possible" in error
    assert "secret" not in error


def test_a_variable_that_is_nearly_a_settings_is_a_warning():
    variables = ["MODEL_IDS", "PORT", "HOSTNAME", "LORA_DIRS", "PATH", "XDG_CACHE_HOME", "STEP"]
    assert settings.misspelt(dict.fromkeys(variables, "1")) == [
        "MODEL_IDS is not a setting; is MODEL_ID meant?",
        "LORA_DIRS is not a setting; is LORA_DIR meant?",
        "STEP is not a setting; is STEPS meant?",
    ]


def test_lists_are_separated_by_commas():
    variables = {"BACKEND_URLS": "http://a:7860, http://10.0.0.2:80", "CORS_ORIGINS": ""}
    chosen = settings.read(["--log-prompts", "yes"], variables)
    assert chosen.backend_urls == ("http://a:7860", "http://10.0.0.2:80")
    assert chosen.cors_origins == ()
    assert chosen.log_prompts


def test_options_stay_as_they_are_and_can_be_sent_to_another_process():
    chosen = settings.read(["--port", "8000"], {})
    with pytest.raises(ValidationError):
        chosen.port = 1
    assert pickle.loads(pickle.dumps(chosen)) == chosen


def test_help_tells_the_flag_the_variable_and_the_default(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        settings.read(["--help"], {"PORT": "8000"})
    assert not stop.value.code
    shown = " ".join(capsys.readouterr().out.split())
    for each in settings.described():
        told = f"{each.description} Default: {each.default}. [{each.variable}]"
        assert f"{each.flag} {each.metavar} {told}" in shown
    assert not re.search(r"--(model|images)\s", shown)


def test_the_documentation_is_up_to_date():
    assert DOCS.read_text("utf-8") == settings_docs.text(), "run python -m tools.settings_docs"
