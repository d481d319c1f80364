"""Opens a page over the whole store on this machine: filter, plot, compare, and watch a measurement go on."""

import argparse

EPILOG = """\
The address has a token in it and is answered on this machine alone. On a device without a screen, forward the port:
  ssh -L 8080:127.0.0.1:8080 pi ergo ui --port 8080      # then open the address that it prints
The page only reads. It costs the device a little time: look at a measurement, but do not leave it open beside one
whose numbers matter.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=int, default=0, metavar="N", help="the port to listen on (default: any that is free)")
    add("--open", action="store_true", help="open it in the browser of this machine")


def execute(arguments: argparse.Namespace) -> int:
    import webbrowser

    from ergometer.report.server import Server
    from ergometer.store.database import Store

    with Store() as store, Server(store.reading(), arguments.port) as server:
        print(f"{server.url}\nCtrl-C ends it.", flush=True)
        if arguments.open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0
