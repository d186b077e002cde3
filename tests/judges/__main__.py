"""scripts/judge NAME: runs a judge, prints its figures and writes them into docs/judges.md."""

from __future__ import annotations

import argparse
import time

from tests.judges import (
    amx,
    avx512,
    client_examples,
    grammar,
    kv_cache,
    langchain_suite,
    live,
    lm_harness,
    neon,
    openapi,
    parity,
    vnni,
)
from tests.judges.report import write_result

JUDGES = {
    "amx": amx,
    "avx512": avx512,
    "clients": client_examples,
    "grammar": grammar,
    "kv-cache": kv_cache,
    "langchain": langchain_suite,
    "lm-eval": lm_harness,
    "neon": neon,
    "parity": parity,
    "schemathesis": openapi,
    "tiny": live,
    "vnni": vnni,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/judge", description=__doc__)
    parser.add_argument("name", choices=sorted(JUDGES))
    parser.add_argument("--oracle", metavar="PYTHON", help="An interpreter with torch and transformers.")
    parser.add_argument("--model", nargs="*", help="parity, kv-cache: short names of models.")
    parser.add_argument("--dtype", nargs="*", default=["auto", "float32"], help="parity: what octavo computes in.")
    parser.add_argument("--reference", metavar="FOLDER", help="parity: where the oracle's logits are, or are kept.")
    parser.add_argument(
        "--seed", type=int, help="tiny: of the weights; grammar: of the schemas; schemathesis: of the cases."
    )
    parser.add_argument("--schemathesis", metavar="PYTHON", help="An interpreter with schemathesis 4.")
    parser.add_argument("--examples", type=int, default=1000, help="schemathesis: cases of each route, and more.")
    options = parser.parse_args()
    judge = JUDGES[options.name]
    start = time.monotonic()
    verdict = judge.run(options)
    print("\n".join(verdict.lines))
    write_result(options.name, (judge.__doc__ or "").strip(), verdict, time.monotonic() - start)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
