"""The page and the APIs over a generator, in the server that serves them."""

from serving import http
from serving.generator import Generator
from serving.observer import Observer
from serving.options import Options
from serving.server import ANSWERS_ON_S, Server
from ui.mount import mount


def build(generator: Generator, observer: Observer, keys: list[str], chosen: Options) -> Server:
    """What serves them as `chosen`, once the environment is prepared: Gradio has read it here."""
    app = http.build(
        generator,
        observer,
        keys=keys,
        cors_origins=chosen.cors_origins,
        trusted_proxies=chosen.trusted_proxies,
        passes_on=bool(chosen.backend_urls),
        on_space=chosen.on_space,
        allowed_hosts=(*chosen.allowed_hosts, chosen.host, chosen.space_host),
    )
    at = chosen.host, chosen.port
    end_streams = mount(app, generator, *at, chosen.keep_files, programs=chosen.page_api)
    return Server(
        app,
        generator,
        *at,
        chosen.stop_within,
        end_streams,
        ANSWERS_ON_S,
        behind_proxy=chosen.trusted_proxies > 0,
    )
