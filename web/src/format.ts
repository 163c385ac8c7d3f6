/** A number with three digits or more and a prefix of the SI, as "weir top" writes it. */
export function short(n: number, unit = ""): string {
  const separator = unit === "" ? "" : " ";
  for (const prefix of ["", "k", "M", "G"]) {
    if (n < 999.5) {
      const digits = n >= 99.95 || (prefix === "" && Number.isInteger(n)) ? 0 : n >= 9.995 || prefix === "" ? 1 : 2;
      return n.toFixed(digits) + (prefix + unit === "" ? "" : separator + prefix + unit);
    }
    n /= 1000;
  }
  return `${n.toFixed(1)}${separator}T${unit}`;
}

export function bits(bytes: number): string {
  return short(8 * bytes, "bit/s");
}

export function percent(part: number, digits = 1): string {
  return `${(100 * part).toFixed(digits)} %`;
}

/** What part of all something is; 0 of nothing. */
export function share(part: number, all: number): number {
  return all === 0 ? 0 : part / all;
}

/** A moment of the director's, in the clock of who looks. */
export function clock(moment: string | number): string {
  return new Date(moment).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** A moment with its day. */
export function dateAndTime(moment: string): string {
  const at = new Date(moment);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(moment)}`;
}

function two(n: number): string {
  return String(n).padStart(2, "0");
}

/** How long ago a moment was, in its largest unit. */
export function ago(moment: string, now = Date.now()): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(moment)) / 1000));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]] as const) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}

export function plural(n: number, one: string, many = one + "s"): string {
  return `${n} ${n === 1 ? one : many}`;
}

/** An address with a port. */
export function endpoint(address: string, port: number | undefined): string {
  if (!port) return address;
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}
