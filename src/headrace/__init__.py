"""Headrace: a streaming service that speaks the Kafka protocol.

Place: the one import name. The packages below it are the folders at the top of the repository
(agent/, metastore/, ...); here they are symbolic links, so that a checkout, an editable install, a
wheel and a type checker all see `headrace.agent` and never a top-level `agent`
(docs/decisions/0030-one-import-name.md).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Return `__version__`, which needs importlib.metadata: most imports of the package do not."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headrace")
    except PackageNotFoundError:  # a source tree that is on sys.path but was never installed
        return "0.0.0"
