/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How busy each CPU is with packets, seen from the kernel's tracepoints. Packets
 * are worked on in the NET_RX softirq, or in the kernel thread of a NAPI instance
 * that has one (napi/DEV-N). napi_poll fires when a poll ends, so what a poll took
 * is the time since the last thing that was seen here: the poll before it, or the
 * beginning of the softirq or of the thread's turn.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NET_RX_SOFTIRQ 3      /* include/linux/interrupt.h */
#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

/* NAPI instances that a CPU knows at a time, a power of two: a host of containers has many. */
#define INSTANCES 256
#define INSTANCE_SHIFT (64 - 8)
/* Places that an instance may have, one after the other. */
#define INSTANCE_PLACES 8

/* Where a CPU handles packets; both at once if a softirq interrupts a thread between polls. */
enum packet_work {
	IN_SOFTIRQ = 1,
	IN_THREAD = 2,
};

/*
 * A NAPI instance: sums over its polls that had packets. Full polls, which had as
 * many as they could, are summed once more: they show what a packet costs at the
 * least. Times are in ns.
 */
struct instance {
	__u64 napi; /* its address, which serves as a name only; 0: none */
	__u64 polls;
	__u64 packets;
	__u64 budget; /* packets, if all polls had been full */
	__u64 time;
	__u64 full_packets;
	__u64 full_time;
	__u64 polled; /* last */
};

struct processor {
	__u64 seen;     /* when something happened here last */
	__u64 in;       /* enum packet_work */
	__u64 overhead; /* time in polls without packets */
	struct instance instances[INSTANCES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct processor);
} processors SEC(".maps");

/* What is read of a task; the loader finds where the running kernel has it. */
struct task_struct {
	unsigned int flags;
	char comm[16];
} __attribute__((preserve_access_index));

/* When counting began; it pauses, and what a CPU was in before is over. */
volatile __u64 since;

static __always_inline struct processor *this_processor(void)
{
	__u32 zero = 0;
	struct processor *p = bpf_map_lookup_elem(&processors, &zero);

	if (p && p->seen < since)
		p->in = 0;
	return p;
}

/* A poll's time begins here, unless one is under way that this work interrupts. */
static __always_inline void enter(struct processor *p, enum packet_work work)
{
	if (!p->in)
		p->seen = bpf_ktime_get_ns();
	p->in |= work;
}

/*
 * What comes after the last poll is not counted: it is next to nothing, and looking
 * at the clock would cost as much.
 */
static __always_inline void leave(struct processor *p, enum packet_work work)
{
	p->in &= ~(__u64)work;
}

/* A thread's name cannot be changed from outside, and begins so since Linux 5.12. */
static __always_inline int is_napi_thread(struct task_struct *t)
{
	return t->flags & PF_KTHREAD && t->comm[0] == 'n' && t->comm[1] == 'a' &&
	       t->comm[2] == 'p' && t->comm[3] == 'i' && t->comm[4] == '/';
}

SEC("raw_tp/softirq_entry")
int softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	struct processor *p;

	if (ctx->args[0] == NET_RX_SOFTIRQ && (p = this_processor()))
		enter(p, IN_SOFTIRQ);
	return 0;
}

SEC("raw_tp/softirq_exit")
int softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct processor *p;

	if (ctx->args[0] == NET_RX_SOFTIRQ && (p = this_processor()))
		leave(p, IN_SOFTIRQ);
	return 0;
}

/* Arguments: preempted or not, the task before, the next one. */
SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	struct task_struct *previous = (void *)ctx[1], *next = (void *)ctx[2];
	struct processor *p;

	if (is_napi_thread(previous) && (p = this_processor()))
		leave(p, IN_THREAD);
	if (is_napi_thread(next) && (p = this_processor()))
		enter(p, IN_THREAD);
	return 0;
}

/*
 * Devices come and go, and nothing says when: if all places are taken, the instance goes that
 * has not been polled for longest. A reader copies the name before the sums, so the name is
 * written after them.
 */
static __always_inline struct instance *find_instance(struct processor *p, __u64 napi)
{
	__u32 first = napi * 0x9e3779b97f4a7c15ULL >> INSTANCE_SHIFT;
	struct instance *i, *oldest = &p->instances[first & (INSTANCES - 1)];

#pragma unroll
	for (int n = 0; n < INSTANCE_PLACES; n++) {
		i = &p->instances[(first + n) & (INSTANCES - 1)];
		if (i->napi == napi)
			return i;
		if (!i->napi) {
			i->napi = napi;
			return i;
		}
		if (i->polled < oldest->polled)
			oldest = i;
	}
	oldest->napi = 0;
	oldest->polls = oldest->packets = oldest->budget = oldest->time = 0;
	oldest->full_packets = oldest->full_time = 0;
	barrier();
	oldest->napi = napi;
	return oldest;
}

static __always_inline void count_poll(struct instance *i, __u64 packets, __u64 budget, __u64 time,
				       __u64 now)
{
	i->polled = now;
	i->polls++;
	i->packets += packets;
	i->budget += budget;
	i->time += time;
	if (packets >= budget) {
		i->full_packets += packets;
		i->full_time += time;
	}
}

SEC("raw_tp/napi_poll")
int napi_poll(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 packets = ctx->args[1], budget = ctx->args[2];
	struct processor *p = this_processor();
	__u64 now, time;

	if (!p)
		return 0;
	if (!p->in) {
		/*
		 * A thread whose turn began before this program did: from now on it
		 * is known. Or a process that polls for its own socket: not ours.
		 */
		if (is_napi_thread(bpf_get_current_task_btf()))
			enter(p, IN_THREAD);
		return 0;
	}
	now = bpf_ktime_get_ns();
	time = now - p->seen;
	p->seen = now;
	if (packets && budget)
		count_poll(find_instance(p, ctx->args[0]), packets, budget, time, now);
	else
		p->overhead += time;
	return 0;
}
