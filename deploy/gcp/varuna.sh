#!/usr/bin/env bash
# Sets up, or takes down, Varuna on Google Cloud: a manager, a managed instance group of spot nodes, and what
# they need. Settings come from the environment; see below and docs/operator-guide/gcp.md.
#
#   PROJECT=my-project ZONE=europe-west4-a NODE_PRICE=0.1 deploy/gcp/varuna.sh create
#   PROJECT=my-project ZONE=europe-west4-a deploy/gcp/varuna.sh delete      # the store's bucket stays
#
# Nothing listens to the world: clients come through Identity-Aware Proxy.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

: "${PROJECT:?which project?}"
: "${ZONE:?which zone?}"
CLUSTER=${CLUSTER:-varuna}                     # name of this installation; value of the label varuna-cluster
NODE_TYPE=${NODE_TYPE:-c3-highcpu-8}           # machine type of a node
NODE_IMAGE=${NODE_IMAGE:-ubuntu-2404-lts-amd64}            # image family, with cloud-init and Python 3.11 or newer
NODE_IMAGE_PROJECT=${NODE_IMAGE_PROJECT:-ubuntu-os-cloud}
NODE_DISK=${NODE_DISK:-50GB}
NODE_OPTIONS=${NODE_OPTIONS:-}                 # more options of the template, such as --accelerator=...
MAX_NODES=${MAX_NODES:-8}
MAX_PRICE=${MAX_PRICE:-10}                     # dollars per hour that all nodes together may cost
NODE_PRICE=${NODE_PRICE:-}                     # dollars per hour of one node; without it no budget can be kept
MANAGER_TYPE=${MANAGER_TYPE:-e2-medium}
PACKAGE=${PACKAGE:-varuna[gcp]}                # a pip requirement, an address of a wheel, or gs://BUCKET/KEY
PIP_OPTIONS=${PIP_OPTIONS:-}

region=${ZONE%-*}
store=$PROJECT-$CLUSTER-store
join=$PROJECT-$CLUSTER-join
manager=$CLUSTER-manager@$PROJECT.iam.gserviceaccount.com
node=$CLUSTER-node@$PROJECT.iam.gserviceaccount.com
role=varuna_manager
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT

gc() { gcloud --project="$PROJECT" --quiet "$@"; }

# filled_in FILE NAME=VALUE...: the file with its ${NAME}s replaced
filled_in() {
  local text pair
  text=$(cat "$1")
  shift
  for pair in "$@"; do
    text=${text//"\${${pair%%=*}}"/"${pair#*=}"}
  done
  printf '%s\n' "$text"
}

manager_config() {
  cat <<YAML
host: 0.0.0.0
port: 7070
security: tls
store: gs://$store/varuna
sizing:
  max_price: $MAX_PRICE
pools:
  - name: spot
    provider: gcp
    project: $PROJECT
    zone: $ZONE
    group: $CLUSTER-node
    cluster: $CLUSTER
    max: $MAX_NODES
    handover: gs://$join/tickets
YAML
  if [ -n "$NODE_PRICE" ]; then echo "    price: $NODE_PRICE"; fi
}

create() {
  if [ -z "$NODE_PRICE" ]; then
    echo "NODE_PRICE: not given; with a budget and no price the manager buys no node" >&2
    exit 2
  fi
  gc services enable compute.googleapis.com iam.googleapis.com iap.googleapis.com storage.googleapis.com

  gc compute networks create "$CLUSTER" --subnet-mode=custom
  gc compute networks subnets create "$CLUSTER" --network="$CLUSTER" --region="$region" \
    --range=10.77.0.0/20 --enable-private-ip-google-access

  gc iam service-accounts create "$CLUSTER-manager" --display-name="Varuna manager of $CLUSTER"
  gc iam service-accounts create "$CLUSTER-node" --display-name="Varuna node of $CLUSTER"
  gc iam roles create "$role" --file="$here/role-manager.yaml"
  gc projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$manager" \
    --role="projects/$PROJECT/roles/$role" --condition=None
  gc iam service-accounts add-iam-policy-binding "$node" --member="serviceAccount:$manager" \
    --role=roles/iam.serviceAccountUser

  gc compute firewall-rules create "$CLUSTER-control" --network="$CLUSTER" --direction=INGRESS --allow=tcp:7070 \
    --source-service-accounts="$node" --target-service-accounts="$manager"
  gc compute firewall-rules create "$CLUSTER-data" --network="$CLUSTER" --direction=INGRESS --allow=tcp:1024-65535 \
    --source-service-accounts="$node" --target-service-accounts="$node"
  gc compute firewall-rules create "$CLUSTER-proxy" --network="$CLUSTER" --direction=INGRESS --allow=tcp:22,tcp:7070 \
    --source-ranges=35.235.240.0/20 --target-service-accounts="$manager"

  local bucket
  for bucket in "$store" "$join"; do
    gc storage buckets create "gs://$bucket" --location="$region" --uniform-bucket-level-access \
      --public-access-prevention
  done
  for account in "$manager" "$node"; do
    gc storage buckets add-iam-policy-binding "gs://$store" --member="serviceAccount:$account" \
      --role=roles/storage.objectUser
  done
  gc storage buckets add-iam-policy-binding "gs://$join" --member="serviceAccount:$manager" \
    --role=roles/storage.objectUser
  gc storage buckets add-iam-policy-binding "gs://$join" --member="serviceAccount:$node" \
    --role=roles/storage.objectViewer

  filled_in "$here/../cloud-init/node.yaml" CLOUD=gcp "JOIN=gs://$join/tickets" DRAIN_S=20 \
    "PACKAGE=$PACKAGE" "PIP_OPTIONS=$PIP_OPTIONS" ENVIRONMENT= >"$files/node.yaml"
  filled_in "$here/../cloud-init/manager.yaml" "MANAGER_CONFIG=$(manager_config | base64 -w0)" \
    "PACKAGE=$PACKAGE" "PIP_OPTIONS=$PIP_OPTIONS" ENVIRONMENT= >"$files/manager.yaml"

  # shellcheck disable=SC2086  # NODE_OPTIONS is a list
  gc compute instance-templates create "$CLUSTER-node" --machine-type="$NODE_TYPE" \
    --provisioning-model=SPOT --instance-termination-action=DELETE \
    --network="$CLUSTER" --subnet="$CLUSTER" --region="$region" \
    --image-family="$NODE_IMAGE" --image-project="$NODE_IMAGE_PROJECT" --boot-disk-size="$NODE_DISK" \
    --service-account="$node" --scopes=cloud-platform --labels="varuna-cluster=$CLUSTER" \
    --metadata-from-file=user-data="$files/node.yaml" $NODE_OPTIONS
  gc compute instance-groups managed create "$CLUSTER-node" --zone="$ZONE" --template="$CLUSTER-node" --size=0

  gc compute instances create "$CLUSTER-manager" --zone="$ZONE" --machine-type="$MANAGER_TYPE" \
    --network="$CLUSTER" --subnet="$CLUSTER" \
    --image-family=ubuntu-2404-lts-amd64 --image-project=ubuntu-os-cloud --boot-disk-size=30GB \
    --service-account="$manager" --scopes=cloud-platform --labels="varuna-role=$CLUSTER-manager" \
    --metadata-from-file=user-data="$files/manager.yaml"
  echo "the manager comes up"
}

delete() {
  gc compute instance-groups managed delete "$CLUSTER-node" --zone="$ZONE"
  gc compute instances delete "$CLUSTER-manager" --zone="$ZONE"
  gc compute instance-templates delete "$CLUSTER-node"
  gc storage rm --recursive "gs://$join"
  gc compute firewall-rules delete "$CLUSTER-control" "$CLUSTER-data" "$CLUSTER-proxy"
  gc compute networks subnets delete "$CLUSTER" --region="$region"
  gc compute networks delete "$CLUSTER"
  gc projects remove-iam-policy-binding "$PROJECT" --member="serviceAccount:$manager" \
    --role="projects/$PROJECT/roles/$role" --condition=None
  gc iam service-accounts delete "$manager"
  gc iam service-accounts delete "$node"
  gc iam roles delete "$role"
  echo "gone; gs://$store stays with your checkpoints: gcloud storage rm --recursive gs://$store"
}

case ${1:-} in
  create | delete) "$1" ;;
  *)
    echo "usage: varuna.sh create|delete, with PROJECT and ZONE in the environment" >&2
    exit 2
    ;;
esac
