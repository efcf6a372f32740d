/* pyxis's options for a Slurm without pyxis: takes what pyxis 0.24 takes, refuses what it refuses, notes what each task
 * got, and runs the task in the image through the runner of clusterctl's own.
 *
 * plugstack.conf: required pyxis.so record=FOLDER python=INTERPRETER runner=FOLDER_OF_THE_RUNNER
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

enum option_number {
    IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENVIRONMENT,
    MOUNT_HOME, NO_MOUNT_HOME, REMAP_ROOT, NO_REMAP_ROOT, ENTRYPOINT, NO_ENTRYPOINT, WRITABLE, READONLY,
    OPTIONS
};

static char *given[OPTIONS]; /* the argument, "" for a switch */
static int take(int number, const char *argument, int remote);

static struct spank_option options[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image to use", 1, IMAGE, take},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mounts, flags joined by '+'", 1, MOUNTS, take},
    {"container-workdir", "PATH", "[pyxis] working directory inside the container", 1, WORKDIR, take},
    {"container-name", "NAME", "[pyxis] name to use for the container", 1, NAME, take},
    {"container-save", "PATH", "[pyxis] save the container state to a squashfs", 1, SAVE, take},
    {"container-env", "NAME[,NAME...]", "[pyxis] variables whose values on the host win", 1, ENVIRONMENT, take},
    {"container-mount-home", NULL, "[pyxis] bind mount the home directory", 0, MOUNT_HOME, take},
    {"no-container-mount-home", NULL, "[pyxis] do not bind mount the home directory", 0, NO_MOUNT_HOME, take},
    {"container-remap-root", NULL, "[pyxis] be root inside the container", 0, REMAP_ROOT, take},
    {"no-container-remap-root", NULL, "[pyxis] do not be root inside the container", 0, NO_REMAP_ROOT, take},
    {"container-entrypoint", NULL, "[pyxis] execute the entrypoint of the image", 0, ENTRYPOINT, take},
    {"no-container-entrypoint", NULL, "[pyxis] do not execute the entrypoint", 0, NO_ENTRYPOINT, take},
    {"container-writable", NULL, "[pyxis] make the container file system writable", 0, WRITABLE, take},
    {"container-readonly", NULL, "[pyxis] make the container file system read-only", 0, READONLY, take},
};

/* One SRC:DST[:FLAGS], as pyxis's parse_mount_option() reads it. */
static int check_mount(char *mount)
{
    char *target = strchr(mount, ':');
    char *flags = target ? strchr(target + 1, ':') : NULL;

    if (!target || target == mount || !target[1] || target[1] == ':') {
        slurm_error("pyxis: --container-mounts: invalid format: %s", mount);
        return -1;
    }
    if (flags && (!flags[1] || strchr(flags + 1, ':'))) {
        slurm_error("pyxis: --container-mounts: invalid flags: %s", mount);
        return -1;
    }
    if (mount[0] != '/' && mount[0] != '.') {
        slurm_error("pyxis: --container-mounts: source path is not absolute: %s", mount);
        return -1;
    }
    return 0;
}

static int check_mounts(const char *argument)
{
    char *copy = strdup(argument), *rest = copy, *mount;
    int result = 0;

    while (result == 0 && (mount = strsep(&rest, ",")))
        result = check_mount(mount);
    free(copy);
    return result;
}

static int take(int number, const char *argument, int remote)
{
    static const int opposite[OPTIONS] = {
        [MOUNT_HOME] = NO_MOUNT_HOME, [NO_MOUNT_HOME] = MOUNT_HOME, [REMAP_ROOT] = NO_REMAP_ROOT,
        [NO_REMAP_ROOT] = REMAP_ROOT, [ENTRYPOINT] = NO_ENTRYPOINT, [NO_ENTRYPOINT] = ENTRYPOINT,
        [WRITABLE] = READONLY, [READONLY] = WRITABLE,
    };

    if (number <= ENVIRONMENT && (!argument || !*argument)) {
        slurm_error("pyxis: --%s: argument required", options[number].name);
        return -1;
    }
    if (given[number] && argument && strcmp(given[number], argument)) {
        slurm_error("pyxis: --%s specified multiple times", options[number].name);
        return -1;
    }
    if (number > ENVIRONMENT && given[opposite[number]]) {
        slurm_error("pyxis: both --%s and its opposite were specified", options[number].name);
        return -1;
    }
    if (number == MOUNTS && check_mounts(argument))
        return -1;
    free(given[number]);
    given[number] = strdup(argument ? argument : "");
    (void)remote;
    return 0;
}

int slurm_spank_init(spank_t spank, int argument_count, char **arguments)
{
    (void)argument_count, (void)arguments;
    for (int number = 0; number < OPTIONS; number++)
        if (spank_option_register(spank, &options[number]) != ESPANK_SUCCESS)
            return -1;
    return 0;
}

static const char *setting(const char *name, int argument_count, char **arguments)
{
    size_t length = strlen(name);
    for (int i = 0; i < argument_count; i++)
        if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    slurm_error("pyxis: plugstack.conf gives no %s", name);
    return "/nowhere";
}

static int note(spank_t spank, const char *folder)
{
    uint32_t job = 0, step = 0, rank = 0;
    char path[4096];
    FILE *file;

    spank_get_item(spank, S_JOB_ID, &job);
    spank_get_item(spank, S_JOB_STEPID, &step);
    spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
    snprintf(path, sizeof(path), "%s/%u.%u.%u", folder, job, step, rank);
    if (!(file = fopen(path, "w"))) {
        slurm_error("pyxis: cannot write %s: %s", path, strerror(errno));
        return -1;
    }
    for (int number = 0; number < OPTIONS; number++)
        if (given[number])
            fprintf(file, "--%s%s%s\n", options[number].name, options[number].has_arg ? "=" : "", given[number]);
    return fclose(file);
}

/* As the user, in the task's own process, last thing before slurmstepd would start its program: start it in the image. */
int slurm_spank_task_init(spank_t spank, int argument_count, char **arguments)
{
    char **program, **environment, **words;
    int program_count, count = 0;

    if (!given[IMAGE])
        return 0;
    if (note(spank, setting("record", argument_count, arguments)))
        return -1;
    spank_get_item(spank, S_JOB_ARGV, &program_count, &program);
    spank_get_item(spank, S_JOB_ENV, &environment);
    words = calloc(OPTIONS + program_count + 6, sizeof(*words));
    words[count++] = (char *)setting("python", argument_count, arguments);
    words[count++] = "-I";
    words[count++] = "-S";
    words[count++] = (char *)setting("runner", argument_count, arguments);
    for (int number = 0; number < OPTIONS; number++)
        if (given[number] && asprintf(&words[count++], "--%s%s%s", options[number].name,
                                      options[number].has_arg ? "=" : "", given[number]) < 0)
            return -1;
    words[count++] = "--";
    for (int i = 0; i < program_count; i++)
        words[count++] = program[i];
    execve(words[0], words, environment);
    slurm_error("pyxis: cannot start %s: %s", words[0], strerror(errno));
    return -1;
}
