/* layout_parts.h - what learning a layout and reading one back share.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_SEARCH_LAYOUT_PARTS_H
#define ALLOT_SEARCH_LAYOUT_PARTS_H

#include "search/layout.h"

allot_status layout_hash(char hex[static HASH_HEX], const struct layout *layout, struct allot_error *err);
/* Fills the tensors' roles and layers, and n_layers. */
allot_status layout_find_roles(struct layout *layout, struct allot_error *err);

#endif
