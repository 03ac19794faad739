"""How answers of a recorded session were sampled, and what came of them."""

import sqlite3

from inferwatch.metrics.requests.sampling import Sampled, SampledAnswer, sampled

_ANSWERS = """
SELECT temperature, top_p, max_tokens,
       coalesce(prompt_tokens + max_tokens >= (
         SELECT max(max_model_len) FROM engines
         WHERE engines.session = ?1 AND engines.source = requests.source
       ), 0) AS fills_context,
       coalesce(engine_output_tokens, output_tokens) AS got,
       coalesce(engine_reason, reason) AS why, thinking_tokens,
       engine_output_tokens IS NULL AND output_tokens IS NOT NULL AS by_front_end
FROM requests
WHERE session = ?1 AND coalesce(engine_finished_ns, finished_ns) <= ?2
AND why NOT IN ('abort', 'error')
ORDER BY ordinal
"""


def recorded_sampling(
    connection: sqlite3.Connection, session: int, now_ns: int
) -> Sampled:
    """Return the groups of answers that had ended by ``now_ns``; exact."""
    rows = connection.execute(_ANSWERS, (session, now_ns))
    return sampled(SampledAnswer._make(row) for row in rows)
