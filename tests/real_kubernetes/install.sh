#!/usr/bin/env bash
# Builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler as one program, for `make test-kubernetes`.
# Cached in .kubernetes under a hash of what it is made from. Needs Go 1.26 and its module proxy; minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly source=tests/real_kubernetes/control-plane version=1.37.2 package=k8s.io/component-base/version
binary=$PWD/.kubernetes/control-plane-$(cat $source/go.mod $source/go.sum $source/main.go | sha256sum | cut -c1-16)
if [ ! -x "$binary" ]; then
  command -v go > /dev/null || { echo "no Go here: install Go 1.26 or newer to build Kubernetes" >&2; exit 2; }
  echo "Building Kubernetes $version into .kubernetes (many minutes the first time, 4 GB of build cache)" >&2
  mkdir -p .kubernetes
  # Without the version flags the server calls itself v0.0.0-master and clients' version checks misbehave.
  (cd $source && CGO_ENABLED=0 go build -mod=readonly -trimpath -o "$binary" -ldflags \
    "-s -w -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${version:2:2}" .)
fi
echo "$binary"
