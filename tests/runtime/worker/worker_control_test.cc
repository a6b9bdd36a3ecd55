#include "runtime/worker/worker_control.h"
