/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BTF keeps only types that something refers to. EXPORT_ENUM and EXPORT_STRUCT keep a type that
 * the Go side needs (the -type flags in generate.go); no loader reads their section.
 */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define EXPORT_ENUM(name) const enum name *export_##name SEC("exports")
#define EXPORT_STRUCT(name) const struct name *export_##name SEC("exports")
