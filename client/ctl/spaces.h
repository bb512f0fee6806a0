/* Spaces as output rows. */
#ifndef KVC_CTL_SPACES_H
#define KVC_CTL_SPACES_H

#include "client/ctl/ctl.h"

/* One row; a table gets a short fingerprint. */
json_t *ctl_space_row(const kvarn_space_info *space, enum ctl_format format);
json_t *ctl_space_rows(const kvarn_space_info *spaces, size_t count, enum ctl_format format);

#endif
