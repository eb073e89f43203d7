"""Plain kubectl against the cluster under test, in one namespace."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite_client import PATIENCE


@dataclass(frozen=True, slots=True)
class Kubectl:
    program: Path
    kubeconfig: Path
    cache: Path
    namespace: str

    async def _start(self, *arguments: str, editor: str = "false") -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.cache),
            "KUBECTL_EXTERNAL_DIFF": "diff -u -N",
            "KUBE_EDITOR": editor,
        }
        return await asyncio.create_subprocess_exec(
            str(self.program),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.cache}",
            f"--namespace={self.namespace}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def attempt(self, *arguments: str, manifest: Any = None, **options: str) -> tuple[int, str, str]:
        """Exit status, output, errors; `manifest` goes to its standard input, `editor` is what `kubectl edit` opens."""
        process = await self._start(*arguments, **options)
        text = json.dumps(manifest).encode() if manifest is not None else b""
        try:
            async with asyncio.timeout(PATIENCE):
                output, errors = await process.communicate(text)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(), errors.decode()

    async def __call__(self, *arguments: str, manifest: Any = None, **options: str) -> str:
        """The output of a command that must succeed."""
        code, output, errors = await self.attempt(*arguments, manifest=manifest, **options)
        assert code == 0, f"kubectl {' '.join(arguments)}: exit status {code}: {errors}"
        return output

    async def fails(self, *arguments: str, manifest: Any = None, **options: str) -> str:
        """What a command that must fail says."""
        code, output, errors = await self.attempt(*arguments, manifest=manifest, **options)
        assert code != 0, f"kubectl {' '.join(arguments)} should have failed: {output}"
        return errors

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """The output of a command that doesn't end by itself (`get -w`); it is ended with the block."""
        process = await self._start(*arguments)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()
