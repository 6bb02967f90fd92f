"""From what a row asks for to the jobs that are put: payload, key, seeds and ids."""

from __future__ import annotations

import os
import random
import time

from . import codec, secrets
from .errors import PayloadError
from .job import PAYLOAD_BYTES_MAX, Job, JobSpec, content_key

__all__ = ["expanded"]

# Its own, which no random.seed() of the user's makes repeat itself. The system's randomness at
# every row would hand the interpreter over at every row.
_chance = random.Random()
os.register_at_fork(after_in_child=_chance.seed)


def expanded(spec: JobSpec) -> list[Job]:
    """The jobs a spec asks for: `samples` of them, each with its seed and key.

    Raises PayloadError for a payload that cannot be kept.
    """
    own, canonical = spec.encoded or codec.encoded(codec.plain(dict(spec.payload)))
    if len(own) > PAYLOAD_BYTES_MAX:
        raise PayloadError(
            f"the payload has {len(own):,} bytes; at most {PAYLOAD_BYTES_MAX:,} fit."
            " Store the data in a file and put its path.",
            kind="too long",
        )
    if secrets.json_holds_secret(own):
        raise PayloadError(
            "the payload holds the key of one of your accounts; keys never go into the database."
            " Give the account a credential='env:NAME' and call job.credential()."
        )
    payload_hash = codec.hash_of_json("[", canonical, "]")
    key = spec.key or content_key(spec)
    if "\0" in key:
        raise PayloadError("the key holds a NUL character; leave it out")
    now_ms = time.time_ns() // 1_000_000
    return [
        Job(
            number=0,
            # Unique, made here and not by the database; newer ones sort behind older ones.
            id=f"{now_ms:011x}{_chance.getrandbits(48):012x}",
            payload_json=own,
            payload_hash=payload_hash,
            batch=spec.batch,
            key=key if sample == 0 else f"{key}~{sample + 1}",
            provider=spec.provider,
            pinned_account=spec.account,
            priority=spec.priority,
            seed=codec.derived_seed(key, sample) if spec.seed is None else spec.seed + sample,
            sample=sample,
            source=spec.source,
            row=spec.row,
            timeout_ms=spec.timeout_ms,
            max_attempts=spec.max_attempts,
            not_before_ms=spec.not_before_ms,
            expires_ms=spec.expires_ms,
        )
        for sample in range(spec.samples)
    ]
