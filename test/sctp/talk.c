/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An SCTP stack in userspace (usrsctp), for labs whose kernel has none:
 *
 *   talk serve ADDRESS PORT NAME        answers each message by NAME
 *   talk call ADDRESS PORT FROM...      opens an association from each of these ports, and then, for each line
 *                                       of its input, sends a message of as many bytes as the line says on all
 *                                       of them, and prints who has answered, in their order
 *
 * It prints "ready" when it listens, or when all associations are open. Packets come and go by raw sockets of its
 * own: usrsctp's do not take packets to addresses of lo, where VIPs are.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <usrsctp.h>

#define MOST 64
#define BYTES 65536

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Another host, as usrsctp knows it. */
struct host {
	int socket;
	socklen_t length;
	struct sockaddr_storage address;
};

static struct host hosts[MOST];
static int raw, hosts_known;
static int first_port, last_port; /* of this process: others may have the same addresses */

static socklen_t resolve(const char *address, struct sockaddr_storage *to)
{
	struct sockaddr_in *four = (struct sockaddr_in *)to;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		return sizeof(*four);
	}
	if (inet_pton(AF_INET6, address, &six->sin6_addr) != 1) {
		fprintf(stderr, "%s is no address\n", address);
		exit(1);
	}
	six->sin6_family = AF_INET6;
	return sizeof(*six);
}

static struct host *find_host(const struct sockaddr_storage *address, socklen_t length)
{
	struct host *host;

	for (int i = 0; i < hosts_known; i++)
		if (!memcmp(&hosts[i].address, address, length))
			return &hosts[i];
	if (hosts_known == MOST)
		return NULL;
	host = &hosts[hosts_known++];
	host->socket = raw;
	host->address = *address;
	host->length = length;
	usrsctp_register_address(host);
	return host;
}

static int send_out(void *to, void *packet, size_t length, uint8_t tos, uint8_t set_df)
{
	struct host *host = to;

	(void)tos;
	(void)set_df;
	sendto(host->socket, packet, length, 0, (struct sockaddr *)&host->address, host->length);
	return 0; /* what is lost is sent again */
}

static void *take_in(void *nothing)
{
	static unsigned char packet[BYTES];

	for (;;) {
		struct sockaddr_storage from;
		socklen_t length = sizeof(from);
		unsigned char *sctp = packet;
		struct host *host;
		ssize_t n;
		int port;

		memset(&from, 0, sizeof(from));
		n = recvfrom(raw, packet, sizeof(packet), 0, (struct sockaddr *)&from, &length);
		if (n <= 0)
			continue;
		if (from.ss_family == AF_INET) {
			sctp += (packet[0] & 15) * 4;
			((struct sockaddr_in *)&from)->sin_port = 0;
		} else {
			((struct sockaddr_in6 *)&from)->sin6_port = 0;
			((struct sockaddr_in6 *)&from)->sin6_flowinfo = 0;
			((struct sockaddr_in6 *)&from)->sin6_scope_id = 0;
		}
		port = n < sctp - packet + 12 ? 0 : sctp[2] << 8 | sctp[3];
		host = port < first_port || port > last_port ? NULL : find_host(&from, length);
		if (host)
			usrsctp_conninput(host, sctp, n - (sctp - packet), 0);
	}
	return nothing;
}

static void *keep_time(void *nothing)
{
	for (;;) {
		usleep(10000);
		usrsctp_handle_timers(10);
	}
	return nothing;
}

/*
 * With packets to one address of this host's, or from one of others, alone: what comes for other processes
 * would be answered, and end their associations.
 */
static void begin(const struct sockaddr_storage *address, socklen_t length,
		  int (*take)(int, const struct sockaddr *, socklen_t))
{
	pthread_t thread;
	int size;

	raw = socket(address->ss_family, SOCK_RAW, IPPROTO_SCTP);
	if (raw < 0 || take(raw, (const struct sockaddr *)address, length) < 0)
		fail("open a socket");
	while (recv(raw, &size, sizeof(size), MSG_DONTWAIT) >= 0)
		;
	size = 4 << 20;
	setsockopt(raw, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	usrsctp_init_nothreads(0, send_out, NULL); /* with threads it has raw sockets, too */
	usrsctp_sysctl_set_sctp_ecn_enable(0);
	pthread_create(&thread, NULL, take_in, NULL);
	pthread_create(&thread, NULL, keep_time, NULL);
}

static struct sockaddr_conn end(void *host, int port)
{
	struct sockaddr_conn end = { .sconn_family = AF_CONN,
				     .sconn_port = htons(port),
				     .sconn_addr = host };

	return end;
}

static struct socket *open_socket(int port)
{
	struct socket *s = usrsctp_socket(AF_CONN, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
	struct sockaddr_conn own = end(NULL, port);

	if (!s)
		fail("usrsctp_socket");
	if (usrsctp_bind(s, (struct sockaddr *)&own, sizeof(own)) < 0)
		fail("usrsctp_bind");
	return s;
}

struct peer {
	struct socket *s;
	const char *name;
};

static void *answer(void *argument)
{
	struct peer *peer = argument;
	char *buffer = malloc(BYTES);
	struct sctp_sndinfo how;
	int flags;

	for (;;) {
		struct sctp_rcvinfo info;
		socklen_t length = sizeof(info);
		unsigned int kind;

		flags = 0;
		if (usrsctp_recvv(peer->s, buffer, BYTES, NULL, NULL, &info, &length, &kind,
				  &flags) <= 0)
			break;
		if (flags & MSG_NOTIFICATION || !(flags & MSG_EOR))
			continue;
		memset(&how, 0, sizeof(how));
		if (usrsctp_sendv(peer->s, peer->name, strlen(peer->name), NULL, 0, &how,
				  sizeof(how), SCTP_SENDV_SNDINFO, 0) < 0)
			break;
	}
	usrsctp_close(peer->s);
	free(buffer);
	free(peer);
	return NULL;
}

static int serve(const char *address, int port, const char *name)
{
	struct sockaddr_storage at;
	socklen_t length = resolve(address, &at);
	struct socket *s;

	first_port = last_port = port;
	begin(&at, length, bind);
	s = open_socket(port);
	if (usrsctp_listen(s, MOST) < 0)
		fail("usrsctp_listen");
	puts("ready");
	for (;;) {
		struct peer *peer = malloc(sizeof(*peer));
		pthread_t thread;

		peer->name = name;
		peer->s = usrsctp_accept(s, NULL, NULL);
		if (!peer->s)
			fail("usrsctp_accept");
		pthread_create(&thread, NULL, answer, peer);
		pthread_detach(thread);
	}
}

static int call(const char *address, int port, char **from, int count)
{
	static char buffer[BYTES];
	struct socket *sockets[MOST];
	struct sockaddr_storage to;
	socklen_t length = resolve(address, &to);
	struct timeval patience = { .tv_sec = 20 };
	struct sctp_sndinfo how;
	struct host *host;
	int size;

	first_port = atoi(from[0]);
	last_port = atoi(from[count - 1]);
	begin(&to, length, connect);
	host = find_host(&to, length);
	for (int i = 0; i < count && i < MOST; i++) {
		struct sockaddr_conn server = end(host, port);

		sockets[i] = open_socket(atoi(from[i]));
		if (usrsctp_connect(sockets[i], (struct sockaddr *)&server, sizeof(server)) < 0)
			fail("usrsctp_connect");
		usrsctp_setsockopt(sockets[i], SOL_SOCKET, SO_RCVTIMEO, &patience,
				   sizeof(patience));
	}
	puts("ready");
	while (scanf("%d", &size) == 1) {
		for (int i = 0; i < count && i < MOST; i++) {
			struct sctp_rcvinfo info;
			socklen_t info_length = sizeof(info);
			unsigned int kind;
			int flags = 0;
			ssize_t n;

			memset(&how, 0, sizeof(how));
			if (usrsctp_sendv(sockets[i], buffer, size, NULL, 0, &how, sizeof(how),
					  SCTP_SENDV_SNDINFO, 0) < 0)
				fail("usrsctp_sendv");
			n = usrsctp_recvv(sockets[i], buffer, sizeof(buffer), NULL, NULL, &info,
					  &info_length, &kind, &flags);
			if (n <= 0)
				fail("usrsctp_recvv");
			printf("%.*s ", (int)n, buffer);
		}
		puts("");
	}
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 5 && !strcmp(argv[1], "serve"))
		return serve(argv[2], atoi(argv[3]), argv[4]);
	if (argc > 4 && !strcmp(argv[1], "call"))
		return call(argv[2], atoi(argv[3]), argv + 4, argc - 4);
	fprintf(stderr, "usage: talk serve ADDRESS PORT NAME | talk call ADDRESS PORT FROM...\n");
	return 2;
}
