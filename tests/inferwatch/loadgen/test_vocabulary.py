"""Counting a server's tokens, against servers that count in different ways."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from inferwatch.loadgen.plan.plan import Api, LoadPlan
from inferwatch.loadgen.prompts.tokenizer import CANDIDATES, Vocabulary

Count = Callable[[str], int]
LONG = {word for word in CANDIDATES if len(word) > 4}


@contextmanager
def tokenizer(count: Count, around: int = 0) -> Iterator[str]:
    """A server with ``/tokenize``; a chat has ``around`` more tokens."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages = asked.get("messages")
            text = messages[0]["content"] if messages else asked["prompt"]
            body = json.dumps({"count": count(text) + bool(messages) * around})
            self.send_response(200 if self.path == "/tokenize" else 404)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Not to our stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def by_word(text: str) -> int:
    """Long words are two tokens."""
    return sum(1 + (word in LONG) for word in text.split(" "))


async def learn(url: str, endpoint: Api = Api.COMPLETIONS) -> Vocabulary:
    return await Vocabulary.learn(
        LoadPlan(run_id="words", model="m", url=url, endpoint=endpoint)
    )


async def test_words_of_one_token_make_prompts_of_an_exact_length() -> None:
    with tokenizer(by_word) as url:
        words = await learn(url)

    assert words.exact
    assert [by_word(words.say(range(300, 300 + n))) for n in (1, 7, 500)] == [1, 7, 500]


async def test_what_a_chat_adds_is_part_of_the_length() -> None:
    with tokenizer(by_word, around=9) as url:
        words = await learn(url, Api.CHAT)

    assert words.exact
    assert by_word(words.say(range(100))) + 9 == 100


async def test_without_words_of_one_token_the_length_is_an_estimate() -> None:
    with tokenizer(lambda text: len(text.replace(" ", ""))) as url:
        words = await learn(url)

    assert not words.exact
    letters = len(words.say(range(1000)).replace(" ", ""))
    assert abs(letters - 1000) < 100


async def test_where_nobody_counts_the_length_is_an_estimate() -> None:
    words = await learn("http://127.0.0.1:9")

    assert not words.exact
    assert len(words.say(range(40)).split()) == 40


def test_equal_ids_are_equal_words() -> None:
    words = Vocabulary()

    assert words.say([5, 6, 7, 1]).startswith(words.say([5, 6, 7]))
    assert words.say([5, 6, 7]) != words.say([5, 6, 8])
