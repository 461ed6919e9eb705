"""The tests' Kafka: without security for most of them, and with TLS and passwords on two further ports."""

from __future__ import annotations

from pathlib import Path

from support.certificates import Authority

from deploy.local.kafka import KafkaBroker
from deploy.local.ports import free_ports

PASSWORD = "p w:@%"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")


class SecuredKafka(KafkaBroker):
    """A broker with two more ports: TLS with a client certificate, and TLS with a password."""

    def __init__(self, authority: Authority) -> None:
        self.tls_port, self.sasl_port = free_ports(2)
        tls = authority.tls("broker")
        store = authority.folder / "broker.store.pem"
        assert tls.key is not None
        assert tls.cert is not None
        store.write_bytes(Path(tls.key).read_bytes() + Path(tls.cert).read_bytes())
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{PASSWORD}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        self.more = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.path),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.password.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.password.plain.sasl.jaas.config": plain,
            "listener.name.password.scram-sha-512.sasl.jaas.config": scram,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MUTUAL:SSL,PASSWORD:SASL_SSL",
        }
        super().__init__(users={"ann": PASSWORD})

    def _build_settings(self) -> dict[str, str]:
        usual = super()._build_settings()
        own = f"MUTUAL://localhost:{self.tls_port},PASSWORD://localhost:{self.sasl_port}"
        ports = {name: f"{usual[name]},{own}" for name in ("listeners", "advertised.listeners")}
        return usual | self.more | ports
