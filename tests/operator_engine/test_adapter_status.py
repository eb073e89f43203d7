from pathlib import Path

from cluster_kit import stage

from evenflow_operator.adapters.cluster import KubeCluster


async def test_a_figure_that_is_no_longer_known_leaves_the_status(tmp_path: Path) -> None:
    async with stage(tmp_path) as s:
        uid = (await s.apply_pool())["metadata"]["uid"]
        cluster = KubeCluster(s.client)
        await cluster.patch_pool_status("default", "llama", uid, {"replicas": 1, "evictionsPerThousand": 7})
        await cluster.patch_pool_status("default", "llama", uid, {"replicas": 2})
        status = (await s.pool())["status"]
        assert status["replicas"] == 2
        assert "evictionsPerThousand" not in status
