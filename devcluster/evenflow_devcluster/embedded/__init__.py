"""A Kubernetes API server in memory, up in tens of milliseconds, for demos, development and tests.

Each package stands on those named before it: `schema` (what a value may look like) and `syntax` (names, quantities,
selectors); `kinds` (the resources, their strategies and columns, and which are served); `store` (objects, history,
watches) and `patching` (patches and who owns which field); `operations` (everything the API does, without HTTP);
`http` (the API over HTTPS). `controllers` run beside them and see the API only through `controller_api`; `cluster`
starts and stops it all; `faults` makes it fail on demand.

It does what Kubernetes 1.37 does, or answers 501 naming what it hasn't: RBAC and admission webhooks, CEL (except
through a Python twin), exec, attach and port-forward, service account tokens, workload controllers, NodePorts and
load balancers, protobuf beyond what kubectl's create and drain commands need. There is one user, cluster-admin.
Nothing is persisted.
"""
