"""Remove what an image does not need from a virtual environment, and compile the rest: slim.py FOLDER.

Place: a step of deploy/Containerfile, after pip.
Invariant: only files that no command of Headrace opens are removed: parts of libraries for other databases, other
services of AWS, other programming languages, and their own tests. Bytecode is compiled here, because a container with a
read-only root file system cannot store it; it is never compared with its source's time, which copying may change.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import sys
from pathlib import Path

SERVICES = {"s3", "sts", "sso", "sso-oidc", "signin"}
"""S3, and what gives credentials for it."""
DIALECTS = {"postgresql", "_typing.py", "__init__.py"}
LEXERS = {"__init__.py", "_mapping.py", "python.py", "special.py"}
"""rich shows Python and plain text, if anything."""
UNUSED = (
    *("numpy/**/tests", "numpy/f2py", "numpy/distutils", "numpy/doc", "sqlalchemy/testing", "boto3/examples"),
    *("boto3/data/*", "cramjam/**/tests"),
)
TYPES = ("**/*.pyi", "**/*.pxd", "**/*.c", "**/*.pyx", "**/*.h")


def main() -> None:
    """Print the size before and after."""
    root = Path(sys.argv[1])
    (packages,) = root.glob("lib/python3*/site-packages")
    before = megabytes(root)
    kept = {"botocore/data": SERVICES, "sqlalchemy/dialects": DIALECTS, "pygments/lexers": LEXERS}
    for name, names in kept.items():
        for path in (packages / name).iterdir():
            if path.name not in names and (name != "botocore/data" or path.is_dir()):
                remove(path)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            remove(path)
    for pattern in TYPES:
        for file in packages.glob(pattern):
            file.unlink()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(packages, quiet=1, force=True, workers=0, invalidation_mode=mode):
        print("some files were not compiled: they are not for this version of Python")
    print(f"{root}: {before} MB, now {megabytes(root)} MB")


def remove(path: Path) -> None:
    """A file, or a folder with all files."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def megabytes(root: Path) -> int:
    """The size of all files."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1_000_000


main()
