"""What to do about one pool: `decide(snapshot, cache) -> Plan`, pure.

The order of one pass (core.decide): what readings add to the memory (core.lengths, rates, stalls) → which pod fills
which slot (core.survey) → refill (core.slots) → drains: user's, rollout, scale-down (core.drains) → placement
(core.placement) → caps (core.caps) → labels, annotations and worker configs (core.patches, core.config) → Services
(core.services) → status (core.status, core.conditions*). No module here knows kopf, Kubernetes clients or asyncio.
"""
