#include "optimizer/model/cluster.h"
