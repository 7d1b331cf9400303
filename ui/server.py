"""The server of the page and the APIs for a generator."""

from serving.generator import Generator
from serving.http import app as http_app
from serving.http.server import ANSWERS_ON_S, Server
from serving.metrics import Observer
from serving.settings import Options
from ui.mount import mount


def build(generator: Generator, observer: Observer, keys: list[str], chosen: Options) -> Server:
    """Return a server of the page and the APIs with the options `chosen`.

    Importing this module imports Gradio, which reads the environment: prepare that before.
    """
    app = http_app.build(
        generator,
        observer,
        keys=keys,
        cors_origins=chosen.cors_origins,
        trusted_proxies=chosen.trusted_proxies,
        passes_on=bool(chosen.backend_urls),
        on_space=chosen.on_space,
        a1111=chosen.a1111_api,
        allowed_hosts=(*chosen.allowed_hosts, chosen.host, chosen.space_host),
    )
    at = chosen.host, chosen.port
    end_streams = mount(
        app,
        generator,
        *at,
        chosen.keep_files,
        programs=chosen.page_api != "off",
        keys=keys if chosen.page_api == "keys" else (),
    )
    return Server(
        app,
        generator,
        *at,
        chosen.stop_within,
        end_streams,
        ANSWERS_ON_S,
        behind_proxy=chosen.trusted_proxies > 0,
    )
