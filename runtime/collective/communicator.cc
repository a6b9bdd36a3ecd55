#include "runtime/collective/communicator.h"
