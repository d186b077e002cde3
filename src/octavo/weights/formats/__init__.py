"""The formats that weights may be stored in, one file each."""

from octavo.weights.formats.bf16 import BF16
from octavo.weights.formats.f16 import F16
from octavo.weights.formats.f32 import F32
from octavo.weights.formats.format import Format
from octavo.weights.formats.q2_k import Q2_K
from octavo.weights.formats.q3_k import Q3_K
from octavo.weights.formats.q4_0 import Q4_0
from octavo.weights.formats.q4_1 import Q4_1
from octavo.weights.formats.q4_k import Q4_K
from octavo.weights.formats.q5_0 import Q5_0
from octavo.weights.formats.q5_1 import Q5_1
from octavo.weights.formats.q5_k import Q5_K
from octavo.weights.formats.q6_k import Q6_K
from octavo.weights.formats.q8_0 import Q8_0

__all__ = ["FORMATS", "Format"]

FORMATS: dict[str, Format] = {
    format.name: format for format in (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
}
