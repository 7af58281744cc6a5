#!/usr/bin/env bash
# gemma3.sh - the demo on Gemma 3 270M (windows, tied embeddings of 262,144 rows, rows that K-quants do not fit):
# log-probabilities equal libllama's, and allot's files at the sizes of two plain mixes are closer to the original.
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
export DEMO_CHUNKS=${DEMO_CHUNKS:-32} DEMO_SEQUENCES=${DEMO_SEQUENCES:-32} DEMO_WINDOWS=${DEMO_WINDOWS:-3}
export DEMO_TYPES=${DEMO_TYPES:-Q3_K,Q4_0,IQ4_NL,Q4_K,Q5_0,Q5_1,Q5_K,Q6_K,Q8_0,BF16} # without those that take long
demo gemma3 Q4_K_M Q3_K_M
gains Q4_K_M 0.5
gains Q3_K_M 0.3
