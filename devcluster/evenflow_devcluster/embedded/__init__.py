"""A Kubernetes API server in memory, up in tens of milliseconds, for demos, development and tests.

From the inside out: `store` (objects, history, one resourceVersion) and `watch`; `schema`, `pruning`, `validation`
and the strategies of the kinds (`pods`, `services`, `kinds`, `crds`); `patches`, `strategic`, `apply` with
`managed` and `fieldsets`; `writes` and `deletion`, the paths of every write; `api`, all operations without HTTP,
with `subresources`; `server` with `requests`, `lists`, `streams`, `tables`, `discovery`, `openapi`, `logs` and
`faults`; `cluster`, which starts and stops it all, controllers included.

It does what Kubernetes 1.37 does, or answers 501 naming what it hasn't: RBAC and admission webhooks, CEL (except
through a Python twin), exec, attach and port-forward, service account tokens, workload controllers, NodePorts and
load balancers, protobuf beyond what kubectl's create and drain commands need. There is one user, cluster-admin.
Nothing is persisted.
"""
