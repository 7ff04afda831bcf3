/*
 * A library for LD_PRELOAD: replaces getaddrinfo() of the C library, and answers for the names in the file $NAMES_TABLE, so that a
 * test decides what each name resolves to, and when. Lines of the file:
 *
 *     NAME ADDRESS [PORT]     the address, with PORT, or else the port that the caller asked for; several addresses have commas between them
 *     NAME again              a temporary failure (EAI_AGAIN)
 *     NAME none               the name does not exist (EAI_NONAME)
 *     NAME wait               no answer until the file has another line for the name
 *
 * All other names are resolved by the C library. Each look-up is appended to $NAMES_TABLE.asked, as a line NAME:SERVICE.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* Finds the line of the table for the name: 0 if there is none. */
static int find(const char *table, const char *name, char answer[128], char port[8])
{
    char line[512], known[256];
    int found = 0;
    FILE *file = fopen(table, "r");
    if (file == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        port[0] = '\0';
        found = sscanf(line, "%255s %127s %7s", known, answer, port) >= 2 && strcmp(known, name) == 0;
    }
    fclose(file);
    return found;
}

static void note(const char *table, const char *name, const char *service)
{
    char path[512], line[512];
    snprintf(path, sizeof path, "%s.asked", table);
    int length = snprintf(line, sizeof line, "%s:%s\n", name, service != NULL ? service : "");
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0) {
        if (write(file, line, length) != length)
            abort();
        close(file);
    }
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
    look_up *system = (look_up *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *table = getenv("NAMES_TABLE");
    char answer[128], port[8];
    if (table == NULL || name == NULL)
        return system(name, service, hints, result);
    note(table, name, service);
    if (!find(table, name, answer, port))
        return system(name, service, hints, result);
    while (strcmp(answer, "wait") == 0) {
        usleep(10000);
        if (!find(table, name, answer, port))
            return EAI_AGAIN;
    }
    if (strcmp(answer, "again") == 0)
        return EAI_AGAIN;
    if (strcmp(answer, "none") == 0)
        return EAI_NONAME;
    struct addrinfo numeric = {.ai_flags = AI_NUMERICHOST};
    if (hints != NULL) {
        numeric.ai_family = hints->ai_family;
        numeric.ai_socktype = hints->ai_socktype;
        numeric.ai_protocol = hints->ai_protocol;
    }
    struct addrinfo **end = result;
    char *rest = answer, *address;
    *result = NULL;
    while ((address = strsep(&rest, ",")) != NULL) {
        int error = system(address, port[0] != '\0' ? port : service, &numeric, end);
        if (error != 0) {
            if (*result != NULL)
                freeaddrinfo(*result);
            return error;
        }
        while (*end != NULL)
            end = &(*end)->ai_next;
    }
    return 0;
}
