"""Who else scales, where managedFields don't say it."""

from scaling_traffic import under


def test_a_writer_without_a_name_is_respected_as_well() -> None:
    cluster = under(10.0)
    cluster.writers = ()
    cluster.rate = 40.0
    cluster.pass_time(30)
    assert cluster.written == [6], "our own write is nobody else's"
    cluster.pass_time(60)
    assert cluster.limited()[1] != "OtherWriter"
    cluster.change(replicas=3)
    cluster.pass_time(300)
    status, reason, message = cluster.limited()
    assert (cluster.written, status, reason) == ([6], "True", "OtherWriter")
    assert "whom the API server doesn't name" in message
    # It answered a write of ours, so a day passes; then we write, and are no rival of ourselves.
    cluster.now += 24 * 3600
    cluster.pass_time(300)
    assert len(cluster.written) > 1
    assert cluster.limited()[1] != "OtherWriter"
