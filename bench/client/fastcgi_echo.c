/* A FastCGI application that answers every request with 1024 octets of text, in one write, and keeps connections.
 * Its argument is the port of 127.0.0.1 that it listens on. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER = 8, BEGIN_REQUEST = 1, END_REQUEST = 3, STDIN = 5, STDOUT = 6, BODY = 1024, MOST = 4096 };

struct connection {
    unsigned char buffer[128 * 1024];
    size_t len;
    int keeps;
};

static struct connection *connections[MOST];
static unsigned char answer[2048];
static size_t answer_len;

static size_t put_header(unsigned char *out, int type, size_t len)
{
    unsigned char header[HEADER] = {1, (unsigned char)type, 0, 1, (unsigned char)(len >> 8), (unsigned char)len, 0, 0};
    memcpy(out, header, HEADER);
    return HEADER;
}

static void make_answer(void)
{
    char head[128];
    int len = snprintf(head, sizeof head, "Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n", BODY);
    answer_len = put_header(answer, STDOUT, (size_t)len + BODY);
    memcpy(answer + answer_len, head, (size_t)len);
    answer_len += (size_t)len;
    for (int at = 0; at < BODY; at++)
        answer[answer_len++] = (unsigned char)"0123456789abcde\n"[at % 16];
    answer_len += put_header(answer + answer_len, STDOUT, 0);
    answer_len += put_header(answer + answer_len, END_REQUEST, 8);
    memset(answer + answer_len, 0, 8);
    answer_len += 8;
}

static void end(int fd)
{
    free(connections[fd]);
    connections[fd] = NULL;
    close(fd);
}

/* Handles what has come; the application never sends more than a socket takes. */
static void serve(int fd)
{
    struct connection *it = connections[fd];
    ssize_t len = read(fd, it->buffer + it->len, sizeof it->buffer - it->len);
    if (len <= 0) {
        end(fd);
        return;
    }
    it->len += (size_t)len;
    size_t at = 0;
    while (it->len - at >= HEADER) {
        unsigned char *record = it->buffer + at;
        size_t content = (size_t)record[4] << 8 | record[5];
        size_t all = HEADER + content + record[6];
        if (it->len - at < all)
            break;
        at += all;
        if (record[1] == BEGIN_REQUEST) {
            it->keeps = record[HEADER + 2] & 1;
        } else if (record[1] == STDIN && content == 0) {
            if (write(fd, answer, answer_len) != (ssize_t)answer_len || !it->keeps) {
                end(fd);
                return;
            }
        }
    }
    it->len -= at;
    memmove(it->buffer, it->buffer + at, it->len);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    make_answer();
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512)) {
        perror("fastcgi_echo");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int number = 0; number < count; number++) {
            int fd = events[number].data.fd;
            if (fd != listener) {
                serve(fd);
                continue;
            }
            int accepted = accept(listener, NULL, NULL);
            if (accepted < 0 || accepted >= MOST || !(connections[accepted] = calloc(1, sizeof **connections))) {
                if (accepted >= 0)
                    close(accepted);
                continue;
            }
            setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            event.events = EPOLLIN;
            event.data.fd = accepted;
            epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &event);
        }
    }
}
