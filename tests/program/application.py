"""The commonest hand-made server: FastAPI, and vLLM's ``LLM()`` in the same program."""

import sys

import uvicorn
from fastapi import FastAPI
from vllm import LLM, SamplingParams


def main(model: str, port: int) -> None:
    llm = LLM(
        model,
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        num_gpu_blocks_override=64,
        enforce_eager=True,
    )
    app = FastAPI()

    @app.get("/ready")
    def ready() -> None: ...

    @app.post("/answer")
    def answer(prompt: str, tokens: int) -> str:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        (output,) = llm.generate([prompt], sampling, use_tqdm=False)
        return str(output.outputs[0].text)

    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":  # vLLM starts its processes by importing this
    main(sys.argv[1], int(sys.argv[2]))
