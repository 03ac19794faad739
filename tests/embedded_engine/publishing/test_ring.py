"""The ring keeps the newest, within bytes and age."""

from embedded_engine.publishing.channel import Ring, RingEntry


def put(ring: Ring, seq: int, *, size: int = 10, t_ns: int = 0) -> None:
    ring.put(RingEntry(seq=seq, t_ns=t_ns, accounted=seq, envelope=bytes(size)))


def test_the_oldest_make_room_in_bytes() -> None:
    ring = Ring(limit_bytes=35)
    for seq in range(10):
        put(ring, seq)

    assert ring.oldest is not None
    assert ring.oldest.seq == 7
    assert ring.used_bytes == 30
    assert len(ring.envelopes()) == 3


def test_the_oldest_make_room_in_time() -> None:
    ring = Ring(limit_bytes=1000, limit_ns=100)
    for seq in range(10):
        put(ring, seq, t_ns=40 * seq)

    assert ring.oldest is not None
    assert ring.oldest.seq == 7


def test_an_envelope_bigger_than_the_ring_leaves_it_empty() -> None:
    ring = Ring(limit_bytes=5)
    put(ring, 0)

    assert ring.oldest is None
    assert ring.used_bytes == 0
