/* Opens TLS connections one after the other, a few at a time: handshake, one
 * small request, orderly close. Either every handshake is full, or every one
 * resumes the session of the connection before it.
 *
 *   handshakes ADDRESS PORT full|resumed COUNT THREADS TLSv1.2|TLSv1.3 SUITE GROUP PATH
 *
 * The program makes one connection per thread, which also gets the first ticket,
 * prints "ready", waits for a line on standard input so that the caller can read
 * its clocks, makes COUNT connections and prints one line of JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in server;
static int resume;
static int version;
static const char *suite, *group;
static char request[512];
static size_t request_len;

static atomic_long left;         /* connections still to be begun */
static atomic_long done, reused; /* connections finished, and how many of them resumed a session */
static atomic_long failed;
static pthread_barrier_t prepared, begin;

struct worker {
    pthread_t thread;
    SSL_CTX *ctx;
    SSL_SESSION *session; /* newest session of this thread, if handshakes are to be resumed */
    char negotiated[128];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Called by OpenSSL for each new session: in TLS 1.3 tickets arrive after the
 * handshake. Returning 1 keeps the reference to the session. */
static int on_new_session(SSL *ssl, SSL_SESSION *session)
{
    struct worker *w = SSL_get_app_data(ssl);
    if (!resume || version != TLS1_3_VERSION)
        return 0;
    SSL_SESSION_free(w->session);
    w->session = session;
    return 1;
}

static SSL_CTX *new_context(void)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (ctx == NULL || !SSL_CTX_set_min_proto_version(ctx, version) || !SSL_CTX_set_max_proto_version(ctx, version) ||
        !(version == TLS1_3_VERSION ? SSL_CTX_set_ciphersuites(ctx, suite) : SSL_CTX_set_cipher_list(ctx, suite)) ||
        !SSL_CTX_set1_groups_list(ctx, group)) {
        ERR_print_errors_fp(stderr);
        exit(2);
    }
    SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL); /* the harness made the certificate itself */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, on_new_session);
    return ctx;
}

/* One connection from SYN to close. Returns 1 if the whole response came. */
static int converse(struct worker *w, int *was_reused)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    char buf[16384];
    int ok = 0, one = 1, n;

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&server, sizeof(server)) != 0) {
        close(fd);
        return 0;
    }
    SSL *ssl = SSL_new(w->ctx);
    SSL_set_app_data(ssl, w);
    SSL_set_fd(ssl, fd);
    SSL_set_alpn_protos(ssl, alpn, sizeof(alpn) - 1);
    if (w->session != NULL)
        SSL_set_session(ssl, w->session);

    if (SSL_connect(ssl) == 1 && SSL_write(ssl, request, (int)request_len) == (int)request_len) {
        int got = 0;
        /* Reads to the end of the connection, which also receives the session tickets. */
        while ((n = SSL_read(ssl, buf, sizeof(buf))) > 0) {
            if (got == 0 && n >= 12 && memcmp(buf, "HTTP/1.1 200", 12) == 0)
                ok = 1;
            got += n;
        }
        *was_reused = SSL_session_reused(ssl);
        /* In TLS 1.2 OpenSSL calls no callback when the server replaces a ticket, but drops the old one, so the session is fetched here. */
        if (ok && resume && version == TLS1_2_VERSION) {
            SSL_SESSION_free(w->session);
            w->session = SSL_get1_session(ssl);
        }
        if (w->negotiated[0] == '\0')
            snprintf(w->negotiated, sizeof(w->negotiated), "%s %s", SSL_get_version(ssl), SSL_get_cipher(ssl));
        SSL_shutdown(ssl);
    }
    ERR_clear_error();
    SSL_free(ssl);
    close(fd);
    return ok;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    int was_reused = 0;
    if (!converse(w, &was_reused))
        atomic_fetch_add(&failed, 1);
    pthread_barrier_wait(&prepared);
    pthread_barrier_wait(&begin);
    /* After ten failures the measurement is given up, because its result would be meaningless. */
    while (atomic_fetch_sub(&left, 1) > 0 && atomic_load(&failed) < 10) {
        was_reused = 0;
        if (converse(w, &was_reused)) {
            atomic_fetch_add(&done, 1);
            atomic_fetch_add(&reused, was_reused);
        } else {
            atomic_fetch_add(&failed, 1);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 10) {
        fprintf(stderr, "usage: handshakes ADDRESS PORT full|resumed COUNT THREADS TLSv1.2|TLSv1.3 SUITE GROUP PATH\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    server.sin_family = AF_INET;
    server.sin_port = htons((unsigned short)atoi(argv[2]));
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) {
        fprintf(stderr, "not an IPv4 address: %s\n", argv[1]);
        return 2;
    }
    resume = strcmp(argv[3], "resumed") == 0;
    atomic_store(&left, atol(argv[4]));
    int threads = atoi(argv[5]);
    version = strcmp(argv[6], "TLSv1.2") == 0 ? TLS1_2_VERSION : TLS1_3_VERSION;
    suite = argv[7];
    group = argv[8];
    request_len = (size_t)snprintf(request, sizeof(request),
        "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", argv[9]);
    if (threads < 1 || threads > 64 || request_len >= sizeof(request)) {
        fprintf(stderr, "an argument is out of its range\n");
        return 2;
    }

    struct worker *workers = calloc((size_t)threads, sizeof(*workers));
    pthread_barrier_init(&prepared, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        workers[i].ctx = new_context();
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    pthread_barrier_wait(&prepared);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    if (fgets(line, sizeof(line), stdin) == NULL)
        return 2;

    double began = now();
    pthread_barrier_wait(&begin);
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    double seconds = now() - began;

    printf("{\"done\": %ld, \"reused\": %ld, \"failed\": %ld, \"seconds\": %.6f, \"negotiated\": \"%s\"}\n",
        atomic_load(&done), atomic_load(&reused), atomic_load(&failed), seconds, workers[0].negotiated);
    return 0;
}
