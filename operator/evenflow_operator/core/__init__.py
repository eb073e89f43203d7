"""What to do about one pool: `decide(snapshot, cache) -> Plan`, pure.

The order of one pass (`decide.py`): what readings add to the memory (`readings/`, `placement/lengths.py`,
`slots/stalls.py`) → which pod fills which slot, what is missing, what drains (`slots/`) → which classes each slot
serves (`placement/`) → caps (`caps.py`, `aimd.py`) → manifests, labels and worker configs (`pods/`) → Services
(`services.py`) → status and conditions (`status/`). No module here knows kopf, Kubernetes clients or asyncio.
"""
