"""What tests have JAX compile with: most of the time is the compiler's, and little pays it back."""

import os

QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false",
}
