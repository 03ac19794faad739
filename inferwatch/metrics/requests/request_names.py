"""What people call a request; one that is sent with ``n=4`` is four sequences."""


def sequence_of(request_id: str, external_id: str | None) -> int | None:
    """Which answer of several it is, as the reply counts them; None: the only one.

    vLLM puts the number before its own id, which begins with that of the client.

    >>> sequence_of("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), sequence_of("2_a-9b1c", "2_a")
    (2, None)
    """
    number, _, rest = request_id.partition("_")
    if external_id and number.isdecimal() and rest.startswith(external_id):
        return int(number)
    return None


def sent_id(request_id: str, external_id: str | None) -> str:
    """The same for all sequences of one request.

    >>> sent_id("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), sent_id("cmpl-7f3a-0-9b1c", None)
    ('cmpl-7f3a-0-9b1c', 'cmpl-7f3a-0-9b1c')
    """
    alone = sequence_of(request_id, external_id) is None
    return request_id if alone else request_id.partition("_")[2]


def request_name(request_id: str, external_id: str | None) -> str:
    """The id that its client knows, with the number of the sequence.

    >>> request_name("2_cmpl-7f3a-0-9b1c", "cmpl-7f3a-0"), request_name("r7", None)
    ('cmpl-7f3a-0[2]', 'r7')
    """
    number = sequence_of(request_id, external_id)
    name = external_id or request_id
    return name if number is None else f"{name}[{number}]"
