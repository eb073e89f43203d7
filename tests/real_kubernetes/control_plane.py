"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on 127.0.0.1, for as long as one command runs.

`python tests/real_kubernetes/control_plane.py BINARY COMMAND …` starts the four, sets EVENFLOW_TEST_KUBECONFIG and
EVENFLOW_TEST_AUDIT_LOG for COMMAND, and ends with its status. Without COMMAND it runs until SIGTERM or Ctrl-C.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from evenflow_devcluster.demo.children import Children
from evenflow_devcluster.embedded.http.tls import kubeconfig, make_certificates, write_private
from evenflow_devcluster.kube import KubeClient, KubeError

START_SECONDS = 120.0
# What service accounts do is written down, so that a test can compare it with what they may.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
SERVICE_NETWORK = "10.78.0.0/16"
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "endpointslice-controller",
    "deployment-controller",
    "replicaset-controller",
    "serviceaccount-controller",
    "disruption-controller",
    "resourcequota-controller",
)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def start(binary: str, folder: Path, children: Children) -> Path:
    """Returns the kubeconfig of a cluster-admin once every part answers. Children stop in the reverse order."""
    etcd_port, peer_port, port = free_ports(3)
    etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    certificates, token = make_certificates("127.0.0.1"), secrets.token_urlsafe(24)
    files = {
        "ca.crt": certificates.ca,
        "server.crt": certificates.certificate,
        # The same key signs the tokens of service accounts: one file less for a server that lives for minutes.
        "server.key": certificates.key,
        "tokens.csv": f'{token},admin,admin,"system:masters"\n'.encode(),
        "audit-policy.json": json.dumps(AUDIT_POLICY).encode(),
        "kubeconfig": kubeconfig(f"https://127.0.0.1:{port}", certificates.ca, token),
    }
    for name, content in files.items():
        write_private(folder / name, content)

    async def run(component: str, *flags: str) -> None:
        await children.start(component, [binary, component, *flags])

    await run(
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
        # As kubeadm sets it: without it a watch of a quiet kind learns of no newer version.
        "--watch-progress-notify-interval=5s",
        "--log-level=warn",
    )
    await run(
        "kube-apiserver",
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allow-privileged=true",
        "--authorization-mode=RBAC",
        # As OpenShift has it: an ownerReference that blocks its owner's deletion needs a permission of its own.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--token-auth-file={folder / 'tokens.csv'}",
        f"--tls-cert-file={folder / 'server.crt'}",
        f"--tls-private-key-file={folder / 'server.key'}",
        f"--service-account-issuer=https://127.0.0.1:{port}/",
        f"--service-account-key-file={folder / 'server.crt'}",
        f"--service-account-signing-key-file={folder / 'server.key'}",
    )
    path = folder / "kubeconfig"
    # Made by the last of its start-up hooks: roles are there, so requests are authorised.
    await _answers(path, children, "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
    await run(
        "kube-controller-manager",
        f"--kubeconfig={path}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={folder / 'server.key'}",
        f"--root-ca-file={folder / 'ca.crt'}",
        f"--controllers={','.join(CONTROLLERS)}",
    )
    await run("kube-scheduler", f"--kubeconfig={path}", "--leader-elect=false", "--secure-port=0")
    # The first thing that the controller-manager makes, and what pods need.
    await _answers(path, children, "/api/v1/namespaces/default/serviceaccounts/default")
    return path


async def _answers(path: Path, children: Children, wanted: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with await KubeClient.connect(path) as client:
        while True:
            children.check()
            try:
                await client.get(wanted)
                return
            except (KubeError, aiohttp.ClientError, OSError) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{wanted} doesn't answer: {error}") from error
            await asyncio.sleep(0.2)


async def main(binary: str, command: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="evenflow-kubernetes-"))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with Children(folder) as children:
            began = time.monotonic()
            path = await start(binary, folder, children)
            print(f"Kubernetes is up after {time.monotonic() - began:.1f} s: KUBECONFIG={path}", flush=True)
            if not command:
                await stop.wait()
                return 0
            environment = {
                **os.environ,
                "EVENFLOW_TEST_KUBECONFIG": str(path),
                "EVENFLOW_TEST_AUDIT_LOG": str(folder / "audit.log"),
            }
            process = await asyncio.create_subprocess_exec(*command, env=environment)
            stopping = asyncio.create_task(stop.wait())
            ended = asyncio.create_task(process.wait())
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                process.terminate()
            stopping.cancel()
            return await ended
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
