"""The server of the page and the APIs for a generator."""

from functools import partial

from serving.generator import Generator
from serving.http import app as http_app
from serving.http.addresses import under
from serving.http.auth import Access, ApiKeys
from serving.http.middleware import ChangedScope
from serving.http.server import ANSWERS_ON_S, Server
from serving.metrics import Observer
from serving.settings import Options
from ui.mount import mount


def build(generator: Generator, observer: Observer, access: Access, options: Options) -> Server:
    """Return a server of the page and the APIs.

    Importing this module imports Gradio, which reads the environment: prepare that before.
    """
    app = http_app.build(
        generator,
        observer,
        access,
        cors_origins=options.cors_origins,
        trusted_proxies=options.trusted_proxies,
        passes_on=bool(options.backend_urls),
        on_space=options.on_space,
        a1111=options.a1111_api,
        allowed_hosts=(*options.allowed_hosts, options.host, options.space_host),
    )
    if options.root_path:
        app.add_middleware(ChangedScope, change=partial(under, options.root_path))
    end_streams = mount(
        app,
        generator,
        options.host,
        options.port,
        options.keep_files,
        programs=options.page_api != "off",
        keys=access.keys if options.page_api == "keys" else ApiKeys(),
        guarded=access.users is not None,
        root_path=options.root_path,
    )
    return Server(
        app,
        generator,
        options.host,
        options.port,
        options.stop_within,
        end_streams,
        ANSWERS_ON_S,
        behind_proxy=options.trusted_proxies > 0,
    )
