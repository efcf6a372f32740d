"""Unpacks clusterctl on another machine: `python -c ... NAME DIGEST SIZE`, with the archive on stdin.

Runs with any Python from 3.11 on that is found there, and imports nothing of clusterctl.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile

name, expected, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.umask(0o077)
base = os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "clusterctl", "remote")
os.makedirs(base, exist_ok=True)
status = os.stat(base)
if status.st_uid != os.geteuid() or status.st_mode & 0o022:
    sys.exit(f"other users can change the folder for clusterctl: {base}; see: ls -ld {shlex.quote(base)}")
final = os.path.join(base, name)
aside = tempfile.mkdtemp(prefix=f".{name}.", dir=base)
try:
    digest = hashlib.sha256()
    with tempfile.TemporaryFile(dir=base) as archive:
        while left and (piece := sys.stdin.buffer.read(min(left, 1 << 20))):
            left -= len(piece)
            digest.update(piece)
            archive.write(piece)
        if left or digest.hexdigest() != expected:
            sys.exit("received data does not match its digest")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as members:
            members.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
            members.extractall(aside)
    program = (
        f"import sys; sys.path.insert(0, {os.path.join(final, 'lib')!r}); "
        "from clusterctl.launcher.cli.served import main; main()"
    )
    with open(os.path.join(aside, "start"), "w") as start:
        start.write(f'exec {shlex.join([sys.executable, "-I", "-X", "utf8", "-c", program])} "$@"\n')
    try:
        os.rename(aside, final)
    except OSError:  # another process was faster, or a file or its Python is missing
        for folder, _, files in os.walk(aside):
            there = os.path.join(final, os.path.relpath(folder, aside))
            os.makedirs(there, exist_ok=True)
            for file in files:  # identical to the existing ones, which may be in use
                os.replace(os.path.join(folder, file), os.path.join(there, file))
finally:
    shutil.rmtree(aside, ignore_errors=True)
subprocess.Popen(  # in the background, so that the first start need not wait
    [sys.executable, "-I", "-m", "compileall", "-q", os.path.join(final, "lib")],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
)
