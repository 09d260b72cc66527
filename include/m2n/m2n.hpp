// Everything a user includes.
#pragma once

#include "m2n/batch.hpp"
#include "m2n/channel.hpp"
#include "m2n/config.hpp"
#include "m2n/export.hpp"
#include "m2n/group.hpp"
#include "m2n/launch.hpp"
#include "m2n/log.hpp"
#include "m2n/placement.hpp"
#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "m2n/types.hpp"
#include "m2n/version.hpp"
