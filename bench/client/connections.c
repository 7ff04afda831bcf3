/* Requests files over HTTP/1.1 in cleartext: each on a new connection, or one after
 * the other on persistent connections.
 *
 *   connections ADDRESS PORT new|kept COUNT THREADS PATH FILES
 *
 * With several files PATH is the first, as in /many/1k/00000.txt, and all
 * connections together request them in turn. The program sends one request, with
 * "kept" also one on each connection, prints "ready", waits for a line on standard
 * input so that the caller can read its clocks, sends COUNT requests and prints one
 * line of JSON. With "kept" it closes its connections when standard input ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in server;
static int keep;
static const char *path;
static long files;
static long body_len = -1; /* of the first answer, which is requested before any thread starts; all other answers must have the same */

static atomic_long left, next_file;
static pthread_barrier_t opened, begin;
static atomic_long done, failed, octets;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_connection(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 5};
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&server, sizeof(server)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends the next request and reads the whole response. Returns the number of its octets, or 0 if it failed. */
static long ask(int fd)
{
    char buf[32768], *end = NULL, *field;
    size_t got = 0, total = 0;
    long content = -1;
    int len;
    if (files > 1) {
        /* PATH ends in five digits and `.txt`; each request replaces the digits. */
        int stem = (int)strlen(path) - 9;
        len = snprintf(buf, sizeof(buf), "GET %.*s%05ld.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", stem, path,
            atomic_fetch_add(&next_file, 1) % files, keep ? "" : "Connection: close\r\n");
    } else {
        len = snprintf(buf, sizeof(buf), "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", path,
            keep ? "" : "Connection: close\r\n");
    }
    if (send(fd, buf, (size_t)len, 0) != len)
        return 0;
    while (end == NULL || got < total) {
        ssize_t n = recv(fd, buf + got, sizeof(buf) - 1 - got, 0);
        if (n <= 0)
            return 0;
        got += (size_t)n;
        buf[got] = '\0';
        if (end == NULL && (end = strstr(buf, "\r\n\r\n")) != NULL) {
            field = strcasestr(buf, "\r\ncontent-length:");
            if (strncmp(buf, "HTTP/1.1 200 ", 13) != 0 || field == NULL || field > end)
                return 0;
            content = atol(field + 17);
            total = (size_t)(end - buf) + 4 + (size_t)content;
            if (total >= sizeof(buf))
                return 0;
        }
    }
    if (got != total || (body_len >= 0 && content != body_len))
        return 0;
    if (body_len < 0)
        body_len = content;
    /* A response on a new connection ends when the server closes the connection. */
    return keep || recv(fd, buf, sizeof(buf), 0) == 0 ? (long)got : 0;
}

static void *work(void *arg)
{
    int fd = -1;
    (void)arg;
    if (keep) {
        fd = open_connection();
        if (fd < 0 || ask(fd) == 0)
            atomic_fetch_add(&failed, 1);
    }
    pthread_barrier_wait(&opened);
    pthread_barrier_wait(&begin);
    /* After ten failures the measurement is given up, because its result would be meaningless. */
    while (atomic_fetch_sub(&left, 1) > 0 && atomic_load(&failed) < 10) {
        long got = 0;
        if (fd < 0)
            fd = open_connection();
        if (fd >= 0)
            got = ask(fd);
        atomic_fetch_add(got > 0 ? &done : &failed, 1);
        atomic_fetch_add(&octets, got);
        if (fd >= 0 && (!keep || got == 0)) {
            close(fd);
            fd = -1;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: connections ADDRESS PORT new|kept COUNT THREADS PATH FILES\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    server.sin_family = AF_INET;
    server.sin_port = htons((unsigned short)atoi(argv[2]));
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) {
        fprintf(stderr, "not an IPv4 address: %s\n", argv[1]);
        return 2;
    }
    keep = strcmp(argv[3], "kept") == 0;
    atomic_store(&left, atol(argv[4]));
    int threads = atoi(argv[5]);
    path = argv[6];
    files = atol(argv[7]);
    if (threads < 1 || threads > 1000 || strlen(path) < 10 * (size_t)(files > 1) || strlen(path) > 256 || files < 1) {
        fprintf(stderr, "an argument is out of its range\n");
        return 2;
    }
    int fd = open_connection();
    if (fd < 0 || ask(fd) == 0) {
        fprintf(stderr, "the first request failed\n");
        return 2;
    }
    close(fd);

    pthread_t *workers = calloc((size_t)threads, sizeof(*workers));
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 * 1024);
    pthread_barrier_init(&opened, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&workers[i], &small, work, NULL) != 0) {
            fprintf(stderr, "cannot start more than %d threads\n", i);
            return 2;
        }
    }
    pthread_barrier_wait(&opened);
    if (atomic_load(&failed) > 0) {
        fprintf(stderr, "%ld connections failed\n", atomic_load(&failed));
        return 2;
    }
    printf("ready\n");
    fflush(stdout);
    char line[16];
    if (fgets(line, sizeof(line), stdin) == NULL)
        return 2;

    double began = now();
    pthread_barrier_wait(&begin);
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i], NULL);
    double seconds = now() - began;

    printf("{\"done\": %ld, \"failed\": %ld, \"octets\": %ld, \"seconds\": %.6f}\n", atomic_load(&done),
        atomic_load(&failed), atomic_load(&octets), seconds);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
    }
    return 0;
}
